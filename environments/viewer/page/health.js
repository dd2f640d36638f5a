"use strict";
// Health by turn index: what credit at each turn is made of, and what it may reward that nobody meant.

/** For each index among acts: the turns there, and how groups compare them. */
function byAct() {
  const count = most(page.rollouts.map(({ acts }) => acts.length).concat(0));
  const columns = range(count, () => ({
    reached: 0, alone: 0, peers: [], varied: 0, flat: 0, single: 0, rewards: [], returns: [], advantages: [], unscored: 0,
  }));
  for (const group of page.index.groups) {
    const siblings = group.rollouts.map((entry) => rolloutOf(group, entry));
    for (let act = 0; act < count; act += 1) {
      const there = siblings.filter(({ acts }) => acts.length > act);
      if (!there.length) break;
      countAct(columns[act], there, act, group.status !== "failed" && there.every(({ entry }) => entry.passed === null));
    }
  }
  return columns;
}

/** Groups that failed, and those of evaluations, have no credit: their zeros are no advantages. */
function countAct(column, there, act, hasCredit) {
  const values = [];
  for (const { entry, acts } of there) {
    const { turns } = entry;
    const at = acts[act];
    column.reached += 1;
    if (turns.peers[at] === 0) column.alone += 1;
    if (turns.peers[at] !== null) column.peers.push(turns.peers[at]);
    if (turns.rewards[at] === null) column.unscored += 1;
    else column.rewards.push(turns.rewards[at]);
    if (turns.returns[at] !== null) column.returns.push(turns.returns[at]);
    if (hasCredit && turns.trained[at]) column.advantages.push(turns.advantages[at]);
    values.push(turns.returns[at] === null ? turns.advantages[at] : turns.returns[at]);
  }
  if (!hasCredit) return;
  if (there.length === 1) column.single += 1;
  else if (most(values) - least(values) > 1e-9) column.varied += 1;
  else column.flat += 1;
}

/** A chart with a heading, what its marks mean, and a line on how to read it. */
function figure(title, chart, legend, note) {
  const keys = (legend || []).map(([kind, words]) => el("span.key", {}, el("i." + kind), words));
  return el("figure", {}, el("figcaption", {}, el("h3", {}, title), keys.length ? el("div.keys", {}, keys) : null), chart, note ? el("p.note", {}, note) : null);
}

function healthSection(columns) {
  const at = (turn, q) => hashOf({ v: "turns", at: turn, q });
  const scored = page.rollouts.filter(({ entry }) => entry.score !== null);
  const withTurns = scored.map(({ entry, acts }) => [acts.length, entry.score]);
  const withTokens = scored.map(({ entry }) => [tokensOf(entry), entry.score]);
  return el("section", {}, el("h2", {}, "Health by turn index"),
    el("p.lead", {}, "What credit at each turn is made of. Late turns are where it thins out: few siblings are left to compare with, and those that are may be the ones that learned to go on."),
    el("div.figures", {}, [
      figure("Turns, with and without a peer", barsByTurn({
        stacks: columns.map((column) => [column.reached - column.alone, column.alone]), classes: ["fill-main", "fill-warn"],
        label: "Turns by index, those without a peer marked",
        words: (turn) => [turnTitle(turn), `${plural(columns[turn].reached, "rollout")} got here`, `${num(columns[turn].alone)} without a peer (${percent(columns[turn].alone, columns[turn].reached)})`],
        href: (turn) => at(turn, columns[turn].alone ? "no-peer" : ""),
      }), [["fill-main", "compared"], ["fill-warn", "no peer"]], aloneNote(columns)),
      figure("Peers left", bandsByTurn({ columns: columns.map((column) => column.peers), label: "Peers of a turn, by turn index", name: "peers", href: (turn) => at(turn) }), [["mean-line", "mean"]],
        "How many sibling turns each baseline is made of. With one or two it is mostly noise."),
      figure("Groups with and without spread", barsByTurn({
        stacks: columns.map((column) => [column.varied, column.flat, column.single]), classes: ["fill-main", "fill-quiet", "fill-warn"],
        label: "Groups by whether their siblings differ at a turn index",
        words: (turn) => [turnTitle(turn), `${plural(columns[turn].varied, "group")} with spread`, `${num(columns[turn].flat)} where all siblings have the same`, `${num(columns[turn].single)} with one sibling left`],
        href: (turn) => at(turn),
      }), [["fill-main", "siblings differ"], ["fill-quiet", "all the same"], ["fill-warn", "one left"]], "Only groups that differ teach something at that turn."),
      figure("Score against number of turns", density({ pairs: withTurns, label: "Score against number of turns", xName: "turns", yName: "score" }), [["mean-line", "mean score"]], stuffingNote(withTurns, "turns")),
      figure("Score against tokens", density({ pairs: withTokens, label: "Score against sampled tokens", xName: "tokens", yName: "score" }), [["mean-line", "mean score"]], stuffingNote(withTokens, "tokens")),
    ]));
}

function tokensOf(entry) {
  return entry.turns.tokens.reduce((sum, count) => sum + count, 0);
}

function aloneNote(columns) {
  const turns = columns.reduce((sum, column) => sum + column.reached, 0);
  const alone = columns.reduce((sum, column) => sum + column.alone, 0);
  return `${num(alone)} of ${plural(turns, "turn")} (${percent(alone, turns)}) had no peer: their advantage is their return as it is, unbiased and noisy.`;
}

/** What a correlation of score and length says, in words. */
function stuffingNote(pairs, what) {
  const r = correlation(pairs);
  if (r === null) return `Nothing to see: the score, or the number of ${what}, is the same everywhere.`;
  const words = r > 0.3
    ? `longer rollouts score higher. Look whether late ${what} earn it: this is what turn stuffing looks like`
    : r < -0.3 ? "longer rollouts score lower: those that fail go on trying" : "length alone buys little score";
  return `r = ${signed(r, 2)}: ${words}.`;
}

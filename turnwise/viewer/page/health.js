"use strict";
// Health by turn index: the parts of credit at each turn, and signs of unintended rewards.

/** For each index among acts: its turns and their credit. */
function byAct() {
  const count = most(page.rollouts.map(({ acts }) => acts.length).concat(0));
  const columns = range(count, () => ({ reached: 0, alone: 0, compared: 0, peers: [], rewards: [], returns: [], advantages: [], unscored: 0 }));
  for (const { group, entry, acts } of page.rollouts) {
    const { turns } = entry;
    acts.forEach((at, act) => {
      if (at < entry.replayed) return;
      const column = columns[act];
      column.reached += 1;
      if (turns.alone[at] === 1) column.alone += 1;
      if (turns.alone[at] === 0) column.compared += 1;
      if (turns.peers[at] !== null) column.peers.push(turns.peers[at]);
      if (turns.rewards[at] === null) column.unscored += 1;
      else if (entry.trunk === null) column.rewards.push(turns.rewards[at]);
      if (turns.returns[at] !== null) column.returns.push(turns.returns[at]);
      // As in the summary: masked turns and groups without credit do not count.
      if (turns.trained[at] && group.status !== "failed" && entry.passed === null) column.advantages.push(turns.advantages[at]);
    });
  }
  return columns;
}

/** A legend: [class of the mark, words]. */
function keysNode(legend) {
  return el("div.keys", {}, legend.map(([kind, words]) => el("span.key", {}, el("i." + kind), words)));
}

/** A chart with a heading, and a line on how to read it. */
function figure(title, chart, note) {
  return el("figure", {}, el("h3", {}, title), chart, note ? el("p.note", {}, note) : null);
}

function healthSection(columns) {
  const at = (turn, q) => hashOf({ v: "turns", at: turn, q });
  const groups = page.index.aggregates.by_turn.map((each) => ({ varied: each.groups - each.groups_without_spread, flat: each.groups_without_spread }));
  const scored = page.rollouts.filter(({ entry }) => entry.score !== null);
  const withTurns = scored.map(({ entry, acts }) => [acts.length, entry.score]);
  return figures("Health by turn index", [["fill-main", "compared, or siblings differ"], ["minus", "no peer"], ["fill-quiet", "not compared, or all the same"], ["cell-few", "few"], ["fill-main", "many"]],
    "What credit at each turn is made of. Late turns are where it thins out: few siblings are left to compare with, and those that are may be the ones that learned to go on.", [
      figure("Turns, with and without a peer", barsByTurn({
        stacks: columns.map((column) => [column.compared, column.alone, column.reached - column.compared - column.alone]), classes: ["fill-main", "minus", "fill-quiet"],
        label: "Turns by index, those without a peer marked",
        words: (turn) => [turnTitle(turn), `${plural(columns[turn].reached, "rollout")} got here`, `${num(columns[turn].alone)} without a peer (${percent(columns[turn].alone, columns[turn].reached)})`, `${num(columns[turn].reached - columns[turn].compared - columns[turn].alone)} not compared`],
        href: (turn) => at(turn, columns[turn].alone ? "no-peer" : ""),
      }), aloneNote(columns)),
      figure("Peers left", bandsByTurn({ columns: columns.map((column) => column.peers), label: "Peers of a turn, by turn index", name: "peers", href: (turn) => at(turn) }),
        "How many values each baseline is made of. With one or two it is mostly noise."),
      figure("Groups with and without spread", barsByTurn({
        stacks: groups.map(({ varied, flat }) => [varied, flat]), classes: ["fill-main", "fill-quiet"],
        label: "Groups by whether their siblings differ at a turn index",
        words: (turn) => [turnTitle(turn), `${plural(groups[turn].varied, "group")} with spread`, `${num(groups[turn].flat)} where all siblings have the same advantage`],
        href: (turn) => at(turn),
      }), "Of groups with two trained turns there or more. Only those that differ teach something at that turn."),
      figure("Score against number of turns", density({ pairs: withTurns, label: "Score against number of turns", xName: "turns", yName: "score" }), stuffingNote(page.index.aggregates.score_against.turns)),
    ]);
}

/** Tokens that were sampled, so not those of replayed turns. */
function tokensOf(entry) {
  return entry.turns.tokens.slice(entry.replayed).reduce((sum, count) => sum + count, 0);
}

function aloneNote(columns) {
  const turns = columns.reduce((sum, column) => sum + column.reached, 0);
  const alone = columns.reduce((sum, column) => sum + column.alone, 0);
  return `${num(alone)} of ${plural(turns, "turn")} (${percent(alone, turns)}) had no peer: their advantage is their return as it is, unbiased and noisy.`;
}

/** A sentence about the correlation of score and length among siblings. */
function stuffingNote(r) {
  if (r === null) return "Nothing to see: among siblings, the score or the number of turns is the same.";
  const words = r > 0.3
    ? "longer rollouts score higher. Look whether late turns earn it: this is what turn stuffing looks like"
    : r < -0.3 ? "longer rollouts score lower: those that fail go on trying" : "length alone buys little score";
  return `Among siblings, r = ${signed(r, 2)}: ${words}.`;
}

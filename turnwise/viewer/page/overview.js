"use strict";
// The first page: facts of the run, results, and places to look at.

function overviewView() {
  const node = el("div", {}, overview());
  // What the reader has opened stays as it is.
  return { node, again: () => node.querySelector("details[open]") || replace(node, overview()) };
}

function overview() {
  const columns = byAct();
  const { index } = page;
  const at = (turn) => hashOf({ v: "turns", at: turn, sort: "largest credit" });
  // As in the summary, a branch does not count beside its trunk.
  const scores = page.rollouts.filter(({ entry }) => entry.trunk === null && entry.score !== null).map(({ entry }) => entry.score);
  return el("div.page", {},
    el("section.head", {}, el("h1", { title: `Read from ${shown(index.source)}` }, shown(index.title)), el("p.lead", {}, runLine(index)), index.cut.length ? el("p.cutline", {}, index.cut.map((line) => el("span", {}, shown(line)))) : null),
    index.groups.length ? el("section.wrong", { "aria-label": "What is wrong" }, wrongLines()) : null,
    el("section.tiles", {}, tiles(columns, scores)),
    figures("Distributions", BAND_KEYS, "", [
      scores.length ? figure("Score", histogram({ values: scores, label: "Distribution of the score", name: "score" }), `${plural(scores.length, "rollout")}: mean ${num(mean(scores))}, median ${num(quantile(sorted(scores), 0.5))}.`) : null,
      figure("Reward by turn index", bandsByTurn({ columns: columns.map((c) => c.rewards), label: "Reward by turn index", name: "reward", href: at, diverging: true }), unscoredNote(columns)),
      figure("Advantage by turn index", bandsByTurn({ columns: columns.map((c) => c.advantages), label: "Advantage by turn index", name: "advantage", href: at, diverging: true }),
        `By ${shortName(index.estimator)}. A mean that leaves zero at some turn says that those who got there differ from their peers.`),
      columns.some((c) => c.returns.length) ? figure("Return by turn index", bandsByTurn({ columns: columns.map((c) => c.returns), label: "Return by turn index", name: "return", href: at, diverging: true }), "The turn's reward and what follows it: what is compared.") : null]),
    runSection(),
    healthSection(columns),
    el("div.columns", {}, failureSection(), endingSection()),
    factSection());
}

/** Charts that share one legend. */
function figures(title, legend, lead, charts, spec = "") {
  return el("section", {}, el("div.figurehead", {}, el("h2", {}, title), keysNode(legend)), lead ? el("p.lead", {}, lead) : null, el("div.figures" + spec, {}, charts));
}

/** What is wrong, in two lines: groups and rollouts that were lost, and turns whose credit may mislead. */
function wrongLines() {
  const { groups, index: { diagnosis } } = page;
  const lost = groups.flatMap((group) => group.failures);
  const [often] = counted(lost.map((failure) => failure.kind));
  const dropped = lost.length ? [link("#v=rollouts&status=dropped", `${num(lost.length)} of ${plural(lost.length + page.rollouts.length, "rollout")} dropped`), ` in ${num(groups.filter((group) => group.failures.length).length)} of ${plural(groups.length, "group")}, most often by ${shown(often[0]).slice(0, 120)}`] : null;
  const turns = ["not-scored", "no-peer", "tool-error", "untrained"].map((q) => [q, matchingTurns({ q }).length]).filter(([, count]) => count);
  return [
    el("p", {}, el("b", {}, "Rollouts "), diagnosis ? [shown(diagnosis), dropped ? "; " : null] : null, dropped, diagnosis || dropped ? null : "none was dropped, and every group has credit"),
    el("p", {}, el("b", {}, "Turns "), turns.length ? turns.map(([q, count], at) => [at ? " · " : null, link(hashOf({ v: "turns", q, sort: "largest credit" }), `${num(count)} ${TURN_QUERIES[q].label}`)]) : page.rollouts.length ? "each is scored and has a peer" : "none was kept"),
  ];
}

const MOST_STEPS = 80;
const MOST_CURVES = 24;

/** Score, reward parts and metrics in the order of the record. */
function runSection() {
  const { groups } = page;
  const every = Math.ceil(groups.length / MOST_STEPS);
  const curves = new Map();
  groups.forEach((group, at) => group.rollouts.filter(({ trunk }) => trunk === null).forEach((entry) => {
    const named = [["score", entry.score], ...Object.entries(entry.parts).map(([name, value]) => ["part: " + name, value]), ...Object.entries(entry.metrics).map(([name, value]) => ["metric: " + name, value])];
    for (const [name, value] of named) {
      if (value === null) continue;
      if (!curves.has(name)) curves.set(name, range(Math.ceil(groups.length / every), () => []));
      curves.get(name)[Math.floor(at / every)].push(value);
    }
  }));
  const moving = [...curves].filter(([, steps]) => new Set(steps.flat()).size > 1);
  if (groups.length < 2 || !moving.length) return null;
  const drawn = moving.slice(0, MOST_CURVES).map(([name, steps]) => {
    const series = range(most(steps.map((each) => each.length)), (which) => steps.map((each) => each[which]));
    return figure(shown(name), seedCurves(series, shown(name), { first: 1, every, unit: "group" }));
  });
  const rest = moving.length - drawn.length;
  return figures("Over the run", [["curve-line", "mean"], ["band-outer", "range"]], `Rollouts of ${every === 1 ? "each group" : `each ${num(every)} groups`}, in the order of the record. A part is the sum over a rollout's turns and outcome.${rest > 0 ? ` ${plural(rest, "more number")} of that kind ${rest === 1 ? "is" : "are"} not drawn.` : ""}`, drawn, ".curves");
}

const BAND_KEYS = [["plus", "median above 0"], ["minus", "below"], ["band-inner", "middle half"], ["band-outer", "middle 80 %"], ["median-line", "median"], ["mean-line", "mean"]];

function runLine(index) {
  if (!index.groups.length) return "No group is recorded yet.";
  const others = index.others.length ? `, beside ${index.others.map(shortName).join(" and ")}` : "";
  return [`${shown(index.env)}, played by ${shown(index.policy)}; credit by `, estimatorNode(index.estimator), `${others}.`];
}

function tiles(columns, scores) {
  const { groups } = page;
  const turns = columns.reduce((sum, { reached }) => sum + reached, 0);
  const tokens = page.rollouts.reduce((sum, { entry }) => sum + tokensOf(entry), 0);
  const lost = groups.reduce((sum, group) => sum + group.failures.length, 0);
  const statuses = counted(groups.map((group) => group.status)).map(([status, count]) => `${num(count)} ${status}`).join(", ");
  const tile = (value, name, detail, hash) => el("a.tile", { href: hash }, el("b", {}, value), el("span", {}, name), el("small", {}, detail));
  const trained = page.rollouts.reduce((sum, { entry, acts }) => sum + acts.filter((at) => entry.turns.trained[at]).length, 0);
  return [
    tile(num(groups.length), groups.length === 1 ? "group" : "groups", statuses, "#v=rollouts"),
    tile(num(page.rollouts.length), "rollouts", lost ? plural(lost, "more was", "more were") + " dropped" : "none dropped", "#v=rollouts"),
    tile(num(mean(scores)), "mean score", scores.length ? `${num(least(scores))} to ${num(most(scores))}` : "nothing was scored", "#v=rollouts&sort=score"),
    tile(num(turns), "turns", `${num(turns / Math.max(1, page.rollouts.length), 1)} a rollout, ${percent(trained, turns)} trained`, "#v=turns"),
    tile(num(tokens), "tokens sampled", `${num(tokens / Math.max(1, turns), 0)} a turn`, hashOf({ v: "turns", sort: "most tokens" })),
  ];
}

function unscoredNote(columns) {
  const unscored = columns.reduce((sum, column) => sum + column.unscored, 0);
  return unscored ? `${plural(unscored, "turn")} not scored: they are left out here.` : columns.length ? "Every turn is scored." : "No turn was kept.";
}

function failureSection() {
  const failures = page.groups.flatMap((group) => group.failures.map((failure) => ({ group, failure })));
  const reasons = Object.entries(page.index.aggregates.reasons);
  const causes = counted(failures.map(({ failure }) => failure.kind));
  return el("section", {}, el("h2", {}, "Failures"),
    failures.length ? el("table", {}, causes.map(([kind, count]) => {
      const { group } = failures.find(({ failure }) => failure.kind === kind);
      return el("tr", {}, el("td.n", {}, num(count)), el("td", {}, link(hashOf({ g: group.id }), shown(kind))));
    })) : el("p.note", {}, "No rollout was dropped."),
    reasons.length ? el("table", {}, reasons.map(([reason, count]) => el("tr", {}, el("td.n", {}, num(count)), el("td", {}, shown(reason))))) : null);
}

function endingSection() {
  const rows = endings();
  return el("section", {}, el("h2", {}, "How rollouts ended"), el("table", {}, rows.map(([words, count]) => {
    const scores = page.rollouts.filter(({ entry }) => ending(entry) === words && entry.score !== null).map(({ entry }) => entry.score);
    return el("tr", {}, el("td.n", {}, num(count)), el("td", {}, link(hashOf({ v: "turns", end: words, q: "last" }), shown(words))), el("td.n", { title: "mean score" }, aligned(num(mean(scores)))));
  })));
}

function factSection() {
  const said = ([, value]) => value !== "null" && !/^sha256:/.test(value);
  const [facts, rest] = [page.index.facts.filter(said), page.index.facts.filter((fact) => !said(fact))];
  return el("section", {}, el("h2", {}, "Run"), factList(facts), rest.length ? details(`${num(rest.length)} more: hashes, and settings that are not set`, () => factList(rest)) : null);
}

function factList(facts) {
  return el("dl.factlist", {}, facts.map(([name, value]) => el("div", {}, el("dt", {}, shown(name)), el("dd", { title: shown(value) }, shown(value)))));
}

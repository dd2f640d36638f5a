"use strict";
// The first page: facts of the run, results, and places to look at.

function overview() {
  const columns = byAct();
  const { index } = page;
  const at = (turn) => hashOf({ v: "turns", at: turn, sort: "largest" });
  const scores = page.rollouts.map(({ entry }) => entry.score).filter((score) => score !== null);
  return el("div.page", {},
    el("section.head", {}, el("h1", {}, shown(index.title)), el("p.lead", {}, runLine(index)), index.cut.length ? el("p.cutline", {}, index.cut.map((line) => el("span", {}, shown(line)))) : null),
    el("section.tiles", {}, tiles(scores)),
    el("section", {}, el("h2", {}, "Distributions"), el("div.figures", {},
      scores.length ? figure("Score", histogram({ values: scores, label: "Distribution of the score", name: "score" }), [["plus-mark", "0 and above"], ["minus-mark", "below 0"]], `${plural(scores.length, "rollout")}: mean ${num(mean(scores))}, median ${num(quantile(sorted(scores), 0.5))}.`) : null,
      figure("Reward by turn index", bandsByTurn({ columns: columns.map((c) => c.rewards), label: "Reward by turn index", name: "reward", href: at, diverging: true }), bandKeys(), unscoredNote(columns)),
      figure("Advantage by turn index", bandsByTurn({ columns: columns.map((c) => c.advantages), label: "Advantage by turn index", name: "advantage", href: at, diverging: true }), bandKeys(),
        `By ${shortName(index.estimator)}. A mean that leaves zero at some turn says that those who got there differ from their peers.`),
      columns.some((c) => c.returns.length) ? figure("Return by turn index", bandsByTurn({ columns: columns.map((c) => c.returns), label: "Return by turn index", name: "return", href: at, diverging: true }), bandKeys(), "The turn's reward and what follows it: what is compared.") : null)),
    runSection(),
    healthSection(columns),
    lookAtSection(),
    el("div.columns", {}, failureSection(), endingSection()),
    factSection(), aggregateSection(index.aggregates));
}

const MOST_STEPS = 80;
const MOST_CURVES = 24;

/** Score, reward parts and metrics in the order of the record. */
function runSection() {
  const { groups } = page.index;
  const every = Math.ceil(groups.length / MOST_STEPS);
  const curves = new Map();
  groups.forEach((group, at) => group.rollouts.forEach((entry) => {
    const named = [["score", entry.score], ...Object.entries(entry.parts).map(([name, value]) => ["part: " + name, value]), ...Object.entries(entry.metrics).map(([name, value]) => ["metric: " + name, value])];
    for (const [name, value] of named) {
      if (value === null) continue;
      if (!curves.has(name)) curves.set(name, range(Math.ceil(groups.length / every), () => []));
      curves.get(name)[Math.floor(at / every)].push(value);
    }
  }));
  const moving = [...curves].filter(([, steps]) => new Set(steps.flat()).size > 1);
  if (groups.length < 2 || !moving.length) return null;
  const figures = moving.slice(0, MOST_CURVES).map(([name, steps]) => {
    const series = range(most(steps.map((each) => each.length)), (which) => steps.map((each) => each[which]));
    return figure(shown(name), seedCurves(series, shown(name), { first: 1, every, unit: "group" }), [["curve-line", "mean"], ["band-outer", "range"]], "");
  });
  const rest = moving.length - figures.length;
  return el("section.run", {}, el("h2", {}, "Over the run"), el("p.lead", {}, `Rollouts of ${every === 1 ? "each group" : `each ${num(every)} groups`}, in the order of the record. A part is the sum over a rollout's turns and outcome.${rest > 0 ? ` ${plural(rest, "more number")} of that kind ${rest === 1 ? "is" : "are"} not drawn.` : ""}`), el("div.figures.curves", {}, figures));
}

function bandKeys(diverging = true) {
  const halves = [["band-inner", "middle half"], ["band-outer", "middle 80 %"], ["median-line", "median"], ["mean-line", "mean"]];
  return diverging ? [...halves, ["plus-mark", "median above 0"], ["minus-mark", "below"]] : halves;
}

function runLine(index) {
  const others = index.others.length ? `, beside ${index.others.map(shortName).join(" and ")}` : "";
  return [`${shown(index.env)}, played by ${shown(index.policy)}; credit by `, estimatorNode(index.estimator), `${others}. Read from ${shown(index.source)}.`];
}

function tiles(scores) {
  const { groups } = page.index;
  const turns = page.rollouts.reduce((sum, { acts }) => sum + acts.length, 0);
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
    tile(num(tokens), "tokens sampled", `${num(tokens / Math.max(1, turns), 0)} a turn`, "#v=turns&sort=tokens"),
  ];
}

function unscoredNote(columns) {
  const unscored = columns.reduce((sum, column) => sum + column.unscored, 0);
  return unscored ? `${plural(unscored, "turn")} not scored: they are left out here.` : "Every turn is scored.";
}

/** Turn queries with their counts: the places where credit is most often wrong. */
function lookAtSection() {
  const names = ["plus-failed", "minus-passed", "no-peer", "tool-error", "not-scored", "untrained", "fork", "condensed", "flips"];
  const rows = names.map((q) => [q, matchingTurns({ q }).length]).filter(([, count]) => count);
  return el("section", {}, el("h2", {}, "Where to look"), el("div.looks", {}, rows.map(([q, count]) =>
    el("a.look", { href: hashOf({ v: "turns", q, sort: "largest" }) }, el("b", {}, num(count)), el("span", {}, TURN_QUERIES[q].label)))));
}

function failureSection() {
  const failures = page.index.groups.flatMap((group) => group.failures.map((failure) => ({ group, failure })));
  const reasons = Object.entries(page.index.aggregates.reasons);
  const byClass = counted(failures.map(({ failure }) => failure.error_class || "other"));
  return el("section", {}, el("h2", {}, "Failures"),
    failures.length ? el("table", {}, byClass.map(([name, count]) => {
      const first = failures.find(({ failure }) => (failure.error_class || "other") === name);
      return el("tr", {}, el("td.n", {}, num(count)), el("td", {}, el("b", {}, shown(name)), " ", link(hashOf({ g: first.group.id }), shown(first.failure.error).slice(0, 160)),
        first.failure.where ? el("small", {}, " " + shown(first.failure.where)) : null));
    })) : el("p.note", {}, "No rollout was dropped."),
    page.index.nothing ? el("p.notice", {}, shown(page.index.nothing)) : null,
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

/** All numbers of the summary; nested names are joined. */
function aggregateSection(aggregates) {
  const rows = [];
  const walk = (value, name) => {
    if (value === null || typeof value !== "object") rows.push([name, typeof value === "number" ? num(value, 4) : String(value)]);
    else if (Array.isArray(value) && value.every((each) => typeof each === "number")) rows.push([name, value.slice(0, 24).map((each) => num(each)).join("  ") + (value.length > 24 ? " …" : "")]);
    else for (const [key, each] of Object.entries(value)) walk(each, name ? `${name} / ${key}` : key);
  };
  walk(aggregates, "");
  if (!rows.length) return null;
  return el("section", {}, el("h2", {}, "Aggregates"), el("details", {}, el("summary", {}, `${num(rows.length)} numbers, as summary.json has them`),
    factList(rows.slice(0, 2000))));
}

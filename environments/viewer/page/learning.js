"use strict";
// What policies learned here: verdicts, curves by estimator, numbers at start and end, and what they do in each state.

const SHOWN_STATES = 12;
const SHOWN_CHOICES = 8;

/** Colours of estimators, in their order. */
const SERIES = 5;

function learningView() {
  const { learning } = page.index;
  const tried = learning.estimators.filter((each) => each.refused === null);
  return el("div.page", {},
    el("section.head", {}, el("h1", {}, shown(page.index.title)), el("p.lead", {}, learningLine(learning))),
    el("section", {}, el("h2", {}, "What was found"), verdictList(learning.verdicts)),
    el("section", {}, el("h2", {}, "While learning"), curveFigures(tried, learning)),
    el("section", {}, el("h2", {}, "From start to end"), changeTable(tried), el("p.note", {}, "Means over the same items and all seeds. ▲ and ▼: more than two standard errors, and no seed says otherwise.")),
    partSection(tried),
    el("section", {}, el("h2", {}, "What it learned to do"), el("p.note", {}, "The most visited states in which there was a choice, of the first seed, with the probability of each message at the end. All began as equally likely."), stateLists(tried)),
    el("section", {}, el("h2", {}, "Rollouts of the first seed"), rolloutLinks(learning.rollouts)));
}

function learningLine(learning) {
  return `A table policy chose among the scripted agent's messages: ${plural(learning.estimators.length, "estimator")}, ${plural(learning.seeds, "seed")}, ${plural(learning.steps, "step")} of ${learning.groups_a_step} groups of ${learning.group_size}, ${plural(learning.items, "item")}, one learning rate (${num(learning.learning_rate)}) for all, ${seconds(learning.seconds)}. It says what these rewards teach such a policy, which is less than what a language model may find.`;
}

function verdictList(verdicts) {
  const mark = (good) => (good === null ? "·" : good ? "✓" : "!");
  return el("table.verdicts", {}, verdicts.map((verdict) => el("tr" + (verdict.good === false ? ".flagged" : ""), {},
    el("th", {}, shown(verdict.about)), el("td.mark", { "aria-label": verdict.good === null ? "" : verdict.good ? "good" : "look" }, mark(verdict.good)), el("td", {}, shown(verdict.text)))));
}

/** One chart for each number that moved in some curve: a line per estimator, and a band over its seeds. */
function curveFigures(tried, learning) {
  const names = [...new Set(tried.flatMap((each) => Object.keys(each.curves)))];
  const moving = names.filter((name) => new Set(tried.flatMap((each) => (own(each.curves, name) || []).flat())).size > 1);
  if (!moving.length) return el("p.note", {}, learning.steps ? "No number changed in any step." : "No step was taken.");
  const keys = tried.map((each, at) => el("span.key", {}, el("i.series" + (at % SERIES)), shown(each.name)));
  return [el("p.keys", {}, keys, el("span", {}, "line: mean of the seeds; band: their range")), el("div.figures.curves", {}, moving.map((name) =>
    figure(shown(name), seedCurves(tried.map((each) => own(each.curves, name) || []), tried.map((each) => shown(each.name)), shown(name)), [], "")))];
}

function seedCurves(curves, names, label) {
  const values = curves.flat(2).filter((value) => value !== null);
  const steps = most(curves.flat().map((curve) => curve.length).concat(1));
  const { node, x, y, inner } = frame({ xs: [0, Math.max(1, steps - 1)], ys: extent(values), label: `${label} by step` });
  const at = (curve, step) => curve.map((seed) => seed[step]).filter((value) => value !== null && value !== undefined);
  curves.forEach((curve, series) => {
    const known = range(steps, (step) => [step, at(curve, step)]).filter(([, found]) => found.length);
    if (!known.length) return;
    const upper = known.map(([step, found]) => [x(step), y(most(found))]);
    const lower = known.map(([step, found]) => [x(step), y(least(found))]).reverse();
    if (curve.length > 1) add(node, [svg("path.seedband.series" + (series % SERIES), { d: path(upper.concat(lower)) + "Z" })]);
    add(node, [svg("path.curve.series" + (series % SERIES), { d: path(known.map(([step, found]) => [x(step), y(mean(found))])) })]);
  });
  const hit = svg("rect.hit", { x: CHART.left, width: inner.right - CHART.left, y: CHART.top, height: inner.bottom - CHART.top });
  let step = 0;
  hit.addEventListener("pointermove", (event) => {
    const box = hit.getBoundingClientRect();
    step = Math.round(((event.clientX - box.left) / (box.width || 1)) * Math.max(1, steps - 1));
  });
  tip(hit, () => [`${label}, step ${num(step)}`, ...curves.map((curve, series) => `${names[series]}: ${num(mean(at(curve, step)))}`)]);
  return add(node, [hit]);
}

function changeTable(tried) {
  const names = [...new Set(tried.flatMap((each) => each.changes.map((change) => change.name)))];
  const found = (each, name) => each.changes.find((change) => change.name === name);
  const still = (name) => tried.every((each) => ["start", "end", "reference"].every((key) => !found(each, name)?.[key]));
  const arrow = { up: " ▲", down: " ▼", unclear: "" };
  const of = (name, key) => tried.map((each) => found(each, name)?.[key]).find((value) => value !== null && value !== undefined);
  return el("div.scrolls", {}, el("table.changes", {},
    el("tr", {}, ["a rollout", "start", ...tried.map((each) => shown(each.name)), "scripted, skill 1"].map((title, at) => el(at ? "th.n" : "th", {}, title))),
    names.filter((name) => !still(name)).map((name) => el("tr", {}, el("td", {}, shown(name)), el("td.n", {}, num(of(name, "start"))),
      tried.map((each) => el("td.n", {}, num(found(each, name)?.end), arrow[found(each, name)?.direction] || "")), el("td.n", {}, num(of(name, "reference")))))));
}

function partSection(tried) {
  const rows = tried.flatMap((each) => each.parts.map((part) => [each, part])).filter(([, part]) => part.verdict !== "not learned");
  if (!rows.length) return null;
  return el("section", {}, el("h2", {}, "Turn rewards"), el("table.partverdicts", {}, rows.map(([each, part]) => el("tr", {}, el("td", {}, el("b", {}, shown(part.part))), el("td", {}, shown(each.name)),
    el("td", {}, el("span.badge" + (part.verdict === "gamed" ? ".flip" : part.verdict === "suspect" ? ".no-peer" : ""), {}, part.verdict)), el("td", {}, shown(part.why))))));
}

function stateLists(tried) {
  return el("div.columns", {}, tried.map((each) => el("div", {}, el("h3", {}, shown(each.name)), each.states.length ? each.states.slice(0, SHOWN_STATES).map(stateNode) : el("p.note", {}, "No state with a choice was met."))));
}

function stateNode(state) {
  const hidden = state.choices.length - SHOWN_CHOICES;
  return el("div.state", {}, el("p", {}, el("b", {}, shown(state.state) || "(nothing)"), el("small", {}, " " + plural(state.visits, "visit"))),
    state.choices.slice(0, SHOWN_CHOICES).map(({ message, probability }) => el("div.choice", {}, el("span.share", {}, el("i", { style: { width: `${100 * probability}%` } })), el("span.n", {}, num(Math.round(100 * probability), 0) + " %"), el("code", {}, shown(message)))),
    hidden > 0 ? el("small", {}, `and ${plural(hidden, "other")}`) : null);
}

function rolloutLinks(rollouts) {
  return el("table", {}, rollouts.map(({ label, groups }) => el("tr", {}, el("td", {}, shown(label)), el("td.links", {}, groups.map((id) => {
    const group = page.groupById.get(id);
    return group ? [link(hashOf({ g: id }), shown(group.item.slice(label.length + 2))), " "] : null;
  })))));
}

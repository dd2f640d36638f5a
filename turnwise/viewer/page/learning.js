"use strict";
// What policies learned here: verdicts, curves by estimator, numbers at start and end, and what they do in each state.

const SHOWN_STATES = 12;
const SHOWN_CHOICES = 8;

function learningView() {
  const { learning } = page.index;
  return el("div.page", {},
    el("section.head", {}, el("h1", {}, shown(page.index.title)), el("p.lead", {}, learningLine(learning))),
    el("section", {}, el("h2", {}, "What was found"), verdictList(learning.verdicts)),
    el("section", {}, el("h2", {}, "While learning"), curveFigures(learning)),
    el("section", {}, el("h2", {}, "From start to end"), changeTable(learning.changes), el("p.note", {}, "Means over the same items and all seeds. ▲ and ▼: more than two standard errors, and no seed says otherwise.")),
    partSection(learning.parts),
    el("section", {}, el("h2", {}, "What it learned to do"), el("p.note", {}, "The most visited states in which there was a choice, of the first seed, with the probability of each message at the end. All began as equally likely."), stateList(learning.states)),
    el("section", {}, el("h2", {}, "Rollouts of the first seed"), rolloutLinks(learning.rollouts)));
}

function learningLine(learning) {
  return `A table policy chose among the scripted agent's messages and learned by ${shown(learning.estimator)}: ${plural(learning.seeds, "seed")}, ${plural(learning.steps, "step")} of ${learning.groups_a_step} groups of ${learning.group_size}, ${plural(learning.items, "item")}, learning rate ${num(learning.learning_rate)}, ${seconds(learning.seconds)}. It says what these rewards teach such a policy, which is less than what a language model may find.`;
}

function verdictList(verdicts) {
  const mark = (good) => (good === null ? "·" : good ? "✓" : "!");
  return el("table.verdicts", {}, verdicts.map((verdict) => el("tr" + (verdict.good === false ? ".flagged" : ""), {},
    el("th", {}, shown(verdict.about)), el("td.mark", { "aria-label": verdict.good === null ? "" : verdict.good ? "good" : "look" }, mark(verdict.good)), el("td", {}, shown(verdict.text)))));
}

/** One chart for each number that moved in some curve: the mean of the seeds, and a band over them. */
function curveFigures(learning) {
  const moving = Object.entries(learning.curves).filter(([, seeds]) => new Set(seeds.flat()).size > 1);
  if (!moving.length) return el("p.note", {}, learning.steps ? "No number changed in any step." : "No step was taken.");
  return [el("p.note", {}, "line: mean of the seeds; band: their range"), el("div.figures.curves", {}, moving.map(([name, seeds]) =>
    figure(shown(name), seedCurves(seeds, shown(name)), [], "")))];
}

/** Several series of one number: the mean of all at each step, in the band of their range. */
function seedCurves(seeds, label, { first = 0, every = 1, unit = "step" } = {}) {
  const values = seeds.flat().filter((value) => value !== null);
  const steps = most(seeds.map((curve) => curve.length).concat(1));
  const { node, x, y, inner } = frame({ xs: [first, first + every * Math.max(1, steps - 1)], ys: extent(values), label: `${label} by ${unit}` });
  const place = (step) => x(first + every * step);
  const at = (step) => seeds.map((seed) => seed[step]).filter((value) => value !== null && value !== undefined);
  const known = range(steps, (step) => [step, at(step)]).filter(([, found]) => found.length);
  const upper = known.map(([step, found]) => [place(step), y(most(found))]);
  const lower = known.map(([step, found]) => [place(step), y(least(found))]).reverse();
  if (seeds.length > 1) add(node, [svg("path.seedband", { d: path(upper.concat(lower)) + "Z" })]);
  add(node, [svg("path.curve", { d: path(known.map(([step, found]) => [place(step), y(mean(found))])) })]);
  const hit = svg("rect.hit", { x: CHART.left, width: inner.right - CHART.left, y: CHART.top, height: inner.bottom - CHART.top });
  let step = 0;
  hit.addEventListener("pointermove", (event) => {
    const box = hit.getBoundingClientRect();
    step = Math.round(((event.clientX - box.left) / (box.width || 1)) * Math.max(1, steps - 1));
  });
  tip(hit, () => [`${label}, ${unit} ${num(first + every * step)}`, num(mean(at(step)))]);
  return add(node, [hit]);
}

function changeTable(changes) {
  const arrow = { up: " ▲", down: " ▼", unclear: "" };
  const moved = changes.filter((change) => change.start || change.end || change.reference);
  return el("div.scrolls", {}, el("table.changes", {},
    el("tr", {}, ["a rollout", "start", "end", "scripted, skill 1"].map((title, at) => el(at ? "th.n" : "th", {}, title))),
    moved.map((change) => el("tr", {}, el("td", {}, shown(change.name)), el("td.n", {}, aligned(num(change.start))), el("td.n", {}, aligned(num(change.end)), arrow[change.direction] || ""), el("td.n", {}, aligned(num(change.reference)))))));
}

function partSection(parts) {
  const learned = parts.filter((part) => part.verdict !== "not learned");
  if (!learned.length) return null;
  return el("section", {}, el("h2", {}, "Turn rewards"), el("table.partverdicts", {}, learned.map((part) => el("tr", {}, el("td", {}, el("b", {}, shown(part.part))),
    el("td", {}, el("span.badge" + (part.verdict === "gamed" ? ".flip" : part.verdict === "suspect" ? ".no-peer" : ""), {}, part.verdict)), el("td", {}, shown(part.why))))));
}

function stateList(states) {
  return states.length ? states.slice(0, SHOWN_STATES).map(stateNode) : el("p.note", {}, "No state with a choice was met.");
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

"use strict";
// Several runs: the list, curves on shared axes, a comparison of two. With more runs than hues, lines are dashed.

const HUES = [210, 28, 140, 280, 345, 180, 55, 250, 100, 315];
const SHOWN_CURVES = 24;
const SHOWN_ITEMS = 200;
const chosen = { a: 0, b: 1 };

function hue(at) {
  return `hsl(${HUES[at % HUES.length]} 62% 48%)`;
}

function dashes(at) {
  const round = Math.floor(at / HUES.length);
  return round ? `${2 + 2 * round} ${1 + round}` : null;
}

function runsView(index) {
  const broken = index.runs.filter((run) => run.note).length;
  return el("div.page", {},
    el("section.head", {}, el("h1", {}, shown(index.title)), el("p.lead", {}, `${plural(index.runs.length, "run")}, newest first${broken ? `; ${broken} with a note` : ""}. A mean is over groups, each of which counts once.`)),
    el("section", {}, el("h2", {}, "Runs"), el("div.scrolls", {}, runTable(index))),
    el("section", {}, el("h2", {}, "Over the groups of each run"), el("p.note", {}, "x: groups in the order they ended. A line has the colour of its run in the list; A and B are drawn full."), curveNodes(index)),
    index.runs.length > 1 ? el("section", {}, el("h2", {}, "Two runs beside each other"), twoRuns(index)) : null);
}

function runTable(index) {
  const heads = ["A", "B", "run", "started", "state", "groups", "failed", "score", "pass@1", "policy", "estimator", ""];
  const pick = (side, at) => el("td", {}, el("input", { type: "radio", name: side, "aria-label": `${side.toUpperCase()}: ${shown(index.runs[at].name)}`, checked: chosen[side] === at, onchange: () => { chosen[side] = at; drawRuns(index); } }));
  return el("table.runs", {}, el("tr", {}, heads.map((head) => el("th" + (["groups", "failed", "score", "pass@1"].includes(head) ? ".n" : ""), {}, head))),
    index.runs.map((run, at) => el("tr", {}, pick("a", at), pick("b", at),
      el("td", {}, el("span.swatch", { style: { background: hue(at) } }), run.page ? el("a", { href: run.page }, shown(run.name)) : shown(run.name)),
      el("td", {}, shown(run.started)), el("td", {}, shown(run.state)), el("td.n", {}, num(run.done) + (run.planned === null ? "" : " / " + num(run.planned))), el("td.n", {}, num(run.failed)),
      el("td.n", {}, aligned(num(run.score))), el("td.n", {}, aligned(num(run.pass_at_1))), el("td", {}, shown(run.policy || "–")), el("td", {}, shown(run.estimator || "–")), el("td.bad", {}, shown(run.note)))));
}

/** A chart for each number of the runs. */
function curveNodes(index) {
  const names = [...new Set(index.runs.flatMap((run) => Object.keys(run.series)))];
  if (!names.length) return el("p.note", {}, "No run has a group with scores.");
  return el("div.figures.curves", {}, names.slice(0, SHOWN_CURVES).map((name) => el("figure", {}, el("figcaption", {}, el("h3", {}, shown(name))), runCurves(index, name))),
    names.length > SHOWN_CURVES ? el("p.note", {}, `and ${plural(names.length - SHOWN_CURVES, "other number")}`) : null);
}

function runCurves(index, name) {
  const lines = index.runs.map((run, at) => ({ run, at, values: own(run.series, name) })).filter((line) => line.values);
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const longest = most(lines.map((line) => line.values.length * line.run.every).concat(1));
  const { node, x, y } = frame({ xs: [0, longest], ys: extent(known), label: `${shown(name)} by group, a line for each run` });
  for (const { run, at, values } of lines) {
    const points = values.map((value, step) => [x((step + 0.5) * run.every), value]).filter(([, value]) => value !== null).map(([px, value]) => [px, y(value)]);
    const line = points.length > 1 ? svg("path.runcurve" + (at === chosen.a || at === chosen.b ? "" : ".dim"), { d: path(points), "stroke-dasharray": dashes(at) }) : points.length ? svg("circle", { cx: points[0][0], cy: points[0][1], r: 2.4 }) : null;
    if (!line) continue;
    line.style[points.length > 1 ? "stroke" : "fill"] = hue(at);
    add(node, [tip(line, () => [shown(run.name), `${shown(name)}: mean ${num(mean(values.filter((value) => value !== null)))}`])]);
  }
  return node;
}

function twoRuns(index) {
  const [a, b] = [index.runs[chosen.a], index.runs[chosen.b]];
  const names = [...new Set([...Object.keys(a.means), ...Object.keys(b.means)])];
  const common = Object.keys(a.items).filter((item) => own(b.items, item) !== undefined);
  const pairs = common.map((item) => [item, a.items[item], b.items[item]]).filter(([, one, other]) => one !== null && other !== null);
  const row = (name, one, other) => el("tr", {}, el("td", {}, shown(name)), el("td.n", {}, aligned(num(one))), el("td.n", {}, aligned(num(other))), el("td.n", {}, one === null || other === null || one === undefined || other === undefined ? "–" : aligned(signed(other - one))));
  const head = (first) => el("tr", {}, el("th", {}, first), el("th.n", {}, "A"), el("th.n", {}, "B"), el("th.n", {}, "B − A"));
  const difference = mean(pairs.map(([, one, other]) => other - one));
  return [el("p.lead", {}, `A: ${shown(a.name)} · B: ${shown(b.name)}`),
    el("table.two", {}, head("mean over groups"), row("groups that count", a.counted, b.counted), names.map((name) => row(name, own(a.means, name), own(b.means, name)))),
    el("h3", {}, `${plural(pairs.length, "item")} in common`),
    pairs.length ? el("p.note", {}, `Mean difference of the items' scores, B − A: ${signed(difference)}. \`turnwise compare\` gives its interval, and pairs items by content.`) : el("p.note", {}, "Nothing to pair: the runs have no item in common."),
    pairs.length ? el("div.scrolls", {}, el("table.two", {}, head("item"), pairs.sort((p, q) => Math.abs(q[2] - q[1]) - Math.abs(p[2] - p[1])).slice(0, SHOWN_ITEMS).map(([item, one, other]) => row(item, one, other)))) : null,
    pairs.length > SHOWN_ITEMS ? el("p.note", {}, `and ${plural(pairs.length - SHOWN_ITEMS, "item")} that differ less`) : null];
}

function drawRuns(index) {
  hideTip();
  replace(document.getElementById("bar"), el("span.brand", {}, "Turnwise"), el("span.title", {}, shown(index.title)));
  replace(document.getElementById("view"), runsView(index));
}

readIndex().then((index) => {
  chosen.b = Math.min(1, index.runs.length - 1);
  drawRuns(index);
  performance.mark("drawn");
}).catch((error) => replace(document.getElementById("view"), el("p.notice", {}, "This page cannot be shown: " + error.message)));

"use strict";
// Several runs as a board: one environment at a time, curves on shared axes, two runs beside each other.

const HUES = [210, 28, 140, 280, 345, 180, 55, 250, 100, 315];
const FIRST_CURVES = 6;
const SHOWN_ITEMS = 200;
const POLL_RUNS_MS = 4000;
/** The reader's choices; `names` are the numbers that are drawn, `null` for the first ones. */
const board = { index: null, runs: [], env: "", a: "", b: "", names: null, smooth: 1, log: false };

/** The colour and dashes of a run: by age, so that a new run changes no other. With more runs than hues, lines are dashed. */
function lineOf(run) {
  const at = board.runs.length - 1 - board.runs.indexOf(run);
  const round = Math.floor(at / HUES.length);
  return { colour: `hsl(${HUES[at % HUES.length]} 62% 48%)`, dashes: round ? `${2 + 2 * round} ${1 + round}` : null };
}

function drawBoard(changed = {}) {
  hideTip();
  Object.assign(board, changed);
  const { index } = board;
  const envs = [...new Set(index.runs.map((run) => run.env))];
  if (!envs.includes(board.env)) board.env = envs[0];
  board.runs = index.runs.filter((run) => run.env === board.env);
  const named = (name, at) => (board.runs.some((run) => run.name === name) ? name : board.runs[Math.min(at, board.runs.length - 1)]?.name);
  Object.assign(board, { a: named(board.a, 0), b: named(board.b, 1) });
  replace(document.getElementById("bar"), el("span.brand", {}, "Turnwise"), el("span.grow"), el("span.live", {}, index.gone ? "the server is gone" : index.live ? [el("i.pulse"), plural(index.runs.length, "run") + " so far"] : [`as of ${index.read}; `, el("code", {}, `turnwise view --serve ${shown(index.title)}`), " follows the runs"]));
  replace(document.getElementById("view"), el("div.page", {},
    el("section.head", {}, el("h1", {}, shown(index.title)),
      el("div.filters.board", {}, choice("environment", null, envs, board.env, (env) => drawBoard({ env, names: null })), el("span.muted", {}, `${plural(board.runs.length, "run")}, newest first`)),
      el("p.lead", {}, commonLine())),
    el("section", {}, el("div.scrolls", {}, runTable())),
    curveSection(),
    board.runs.length > 1 ? el("section", {}, el("h2", {}, "A and B beside each other"), twoRuns()) : null));
}

/** The value that every run has, or `undefined`. */
function common(field) {
  const known = new Set(board.runs.map((run) => run[field]).filter((value) => value !== null));
  return known.size === 1 ? [...known][0] : undefined;
}

function commonLine() {
  const [policy, estimator] = [common("policy"), common("estimator")];
  return [policy ? `Played by ${shown(policy)}. ` : null, estimator ? ["Credit by ", estimatorNode(estimator), ". "] : null, "A mean is over groups, each of which counts once."];
}

function runTable() {
  const differing = ["policy", "estimator"].filter((field) => common(field) === undefined && board.runs.some((run) => run[field] !== null));
  const counts = ["groups", "failed", "score", "pass@1"];
  const pick = (side, run) => el("td", {}, el("input", { type: "radio", name: side, "aria-label": `${side.toUpperCase()}: ${shown(run.name)}`, checked: board[side] === run.name, onchange: () => drawBoard({ [side]: run.name }) }));
  return el("table.runs", {}, el("tr", {}, ["A", "B", "run", ...counts, "state", "started", ...differing, "page", ""].map((head) => el("th" + (counts.includes(head) ? ".n" : ""), {}, head))),
    board.runs.map((run) => el("tr", {}, pick("a", run), pick("b", run), el("td", {}, el("span.swatch", { style: { background: lineOf(run).colour } }), shown(run.name)),
      el("td.n", {}, num(run.done) + (run.planned === null ? "" : " / " + num(run.planned))), el("td.n", {}, num(run.failed)), el("td.n", {}, aligned(num(run.score))), el("td.n", {}, aligned(num(run.pass_at_1))),
      el("td", {}, shown(run.state)), el("td", {}, shown(run.started)), differing.map((field) => el("td.wide", {}, estimatorNode(run[field] || "–"))),
      el("td", {}, run.page ? el("a", { href: run.page }, "open") : run.counted ? el("code", { title: "Makes its page" }, `turnwise view ${shown(run.path)}`) : el("span.muted", {}, "no group is recorded")),
      el("td.wide.bad", {}, shown(run.note)))));
}

function curveSection() {
  const names = [...new Set(board.runs.flatMap((run) => Object.keys(run.series)))];
  const drawn = names.filter((name, at) => (board.names ? board.names.includes(name) : at < FIRST_CURVES));
  const toggled = (name) => (drawn.includes(name) ? drawn.filter((each) => each !== name) : [...drawn, name]);
  return el("section", {}, el("h2", {}, "Over the groups of each run"),
    el("div.chips.board", { role: "group", "aria-label": "Numbers" }, names.map((name) => button(".chip", shown(name), () => drawBoard({ names: toggled(name) }), { "aria-pressed": String(drawn.includes(name)) }))),
    el("div.filters.board", {}, choice("smoothing", "not smoothed", ["3", "5", "11", "21"], String(board.smooth), (count) => drawBoard({ smooth: Number(count) || 1 }), (count) => `mean of ${count} points`),
      button(".chip", "log scale", () => drawBoard({ log: !board.log }), { "aria-pressed": String(board.log) }),
      el("span.note", {}, `x: groups in the order they ended; A and B are drawn full${board.log ? "; numbers of 0 and below are left out" : ""}`)),
    names.length ? el("div.figures.curves", {}, drawn.map((name) => el("figure", {}, el("h3", {}, shown(name)), runCurves(name)))) : el("p.note", {}, "No run has a group with scores."));
}

/** Means of `board.smooth` points around each, and their logarithms if chosen; unknown points stay `null`. */
function smoothed(values) {
  const half = (board.smooth - 1) / 2;
  return values.map((value, at) => {
    if (value === null) return null;
    const near = mean(values.slice(Math.max(0, at - half), at + half + 1).filter((each) => each !== null));
    return !board.log ? near : near > 0 ? Math.log10(near) : null;
  });
}

function runCurves(name) {
  const lines = board.runs.filter((run) => own(run.series, name)).map((run) => ({ run, values: smoothed(run.series[name]) }));
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const longest = most(lines.map(({ run, values }) => 1 + (values.length - 1) * run.every).concat(2));
  const { node, x, y } = frame({ xs: [1, longest], ys: extent(known), whole: true, log: board.log, label: `${shown(name)} by group, a line for each run` });
  for (const { run, values } of lines) {
    const points = values.map((value, step) => [x(1 + step * run.every), value]).filter(([, value]) => value !== null).map(([px, value]) => [px, y(value)]);
    const { colour, dashes } = lineOf(run);
    const line = points.length > 1 ? svg("path.runcurve" + (run.name === board.a || run.name === board.b ? "" : ".dim"), { d: path(points), "stroke-dasharray": dashes }) : points.length ? svg("circle", { cx: points[0][0], cy: points[0][1], r: 2.4 }) : null;
    if (!line) continue;
    line.style[points.length > 1 ? "stroke" : "fill"] = colour;
    add(node, [tip(line, () => [shown(run.name), `${shown(name)}: mean ${num(run.means[name])}`])]);
  }
  return node;
}

function twoRuns() {
  const [a, b] = [board.a, board.b].map((name) => board.runs.find((run) => run.name === name));
  const names = [...new Set([...Object.keys(a.means), ...Object.keys(b.means)])];
  const pairs = Object.keys(a.items).map((item) => [item, a.items[item], own(b.items, item) ?? null]).filter(([, one, other]) => one !== null && other !== null);
  const difference = (one, other) => ((one ?? null) === null || (other ?? null) === null ? "–" : aligned(signed(other - one)));
  const row = (name, one, other) => el("tr", {}, el("td", {}, shown(name)), el("td.n", {}, aligned(num(one))), el("td.n", {}, aligned(num(other))), el("td.n", {}, difference(one, other)));
  const head = (first) => el("tr", {}, el("th", {}, first), el("th.n", {}, "A"), el("th.n", {}, "B"), el("th.n", {}, "B − A"));
  return [el("p.lead", {}, `A: ${shown(a.name)} · B: ${shown(b.name)}`),
    el("table.two", {}, head("mean over groups"), row("groups that count", a.counted, b.counted), names.map((name) => row(name, own(a.means, name), own(b.means, name)))),
    el("h3", {}, `${plural(pairs.length, "item")} in common${a.items_left_out || b.items_left_out ? ", of the first ones of each" : ""}`),
    el("p.note", {}, pairs.length ? `Mean difference of the items' scores, B − A: ${signed(mean(pairs.map(([, one, other]) => other - one)))}. \`turnwise compare\` gives its interval, and pairs items by content.` : "Nothing to pair: the runs have no item in common."),
    pairs.length ? el("div.scrolls", {}, el("table.two", {}, head("item"), pairs.sort((p, q) => Math.abs(q[2] - q[1]) - Math.abs(p[2] - p[1])).slice(0, SHOWN_ITEMS).map(([item, one, other]) => row(item, one, other)))) : null,
    pairs.length > SHOWN_ITEMS ? el("p.note", {}, `and ${plural(pairs.length - SHOWN_ITEMS, "item")} that differ less`) : null];
}

/** Read the runs again, and draw them if they have changed. */
async function pollRuns() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 5 * POLL_RUNS_MS : POLL_RUNS_MS));
    const index = await readIndex().catch(() => ({ ...board.index, gone: true }));
    if (JSON.stringify(index) !== JSON.stringify(board.index)) drawBoard({ index });
  }
}

readIndex().then((index) => {
  drawBoard({ index });
  performance.mark("drawn");
  if (index.live) pollRuns();
}).catch((error) => replace(document.getElementById("view"), el("p.notice", {}, "This page cannot be shown: " + error.message)));

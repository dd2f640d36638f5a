"use strict";
// Small charts in SVG, drawn in a box of fixed units and scaled by the browser.

const CHART = { width: 360, height: 150, left: 46, right: 8, top: 8, bottom: 22 };

/** A frame with axes: `x(value)` and `y(value)` are positions, `add` adds marks. */
function frame({ xs, ys, whole = false, log = false, label, height = CHART.height }) {
  const inner = { right: CHART.width - CHART.right, bottom: height - CHART.bottom };
  const x = scale(xs, CHART.left, inner.right);
  const y = scale(ys, inner.bottom, CHART.top);
  const node = svg("svg.chart", { viewBox: `0 0 ${CHART.width} ${height}`, role: "img", "aria-label": label });
  // On a logarithmic axis: powers of ten, or round numbers where there are few of these.
  const heights = !log ? ticks(...ys, 4) : ys[1] - ys[0] > 1.5 ? ticks(...ys, 4).filter(Number.isInteger) : ticks(10 ** ys[0], 10 ** ys[1], 4).map(Math.log10);
  for (const tick of heights) {
    add(node, [
      svg("line.grid", { x1: CHART.left, x2: inner.right, y1: y(tick), y2: y(tick) }),
      svg("text.tick.end", { x: CHART.left - 6, y: y(tick) + 3.5 }, num(log ? 10 ** tick : tick)),
    ]);
  }
  for (const tick of whole ? ticks(...xs, 9).filter(Number.isInteger) : ticks(...xs, 6)) add(node, [svg("text.tick.mid", { x: x(tick), y: height - 7 }, num(tick))]);
  if (ys[0] < 0 && ys[1] > 0) add(node, [svg("line.zero", { x1: CHART.left, x2: inner.right, y1: y(0), y2: y(0) })]);
  return { node, x, y, inner };
}

function scale([low, high], from, to) {
  const span = high - low || 1;
  return (value) => Math.round((from + ((value - low) / span) * (to - from)) * 100) / 100;
}

/** Round numbers in an interval, about `count` of them. */
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((each) => each * power >= rough) || 10);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

/** An interval around the values, of size above 0. */
function extent(values, ...also) {
  const all = values.concat(also);
  if (!all.length) return [0, 1];
  const [low, high] = [least(all), most(all)];
  const edge = (high - low || Math.abs(high) || 1) * 0.06;
  return [low === 0 ? 0 : low - edge, high === 0 ? 0 : high + edge];
}

function path(points) {
  return points.map(([x, y], at) => (at ? "L" : "M") + x + " " + y).join("");
}

/** Stacked bars by turn index: `stacks[turn]` are heights in the order of `classes`. */
function barsByTurn({ stacks, classes, label, words, href }) {
  const highest = most(stacks.map((stack) => stack.reduce((sum, each) => sum + each, 0))) || 1;
  const count = stacks.length;
  const { node, x, y, inner } = frame({ xs: [0.5, count + 0.5], ys: [0, highest], whole: true, label });
  const width = Math.max(1, Math.min(26, (x(1) - x(0)) * 0.78));
  stacks.forEach((stack, turn) => {
    let base = 0;
    const bars = stack.map((size, at) => {
      const bar = svg("rect." + classes[at], { x: x(turn + 1) - width / 2, width, y: y(base + size), height: Math.max(0, y(base) - y(base + size)) });
      base += size;
      return size ? bar : null;
    });
    add(node, [bars, hitColumn(x, turn, inner, words, href)]);
  });
  return node;
}

/** The area of one turn index for pointer and keyboard. */
function hitColumn(x, turn, inner, words, href) {
  const rect = svg("rect.hit", { x: x(turn + 0.5), width: x(turn + 1.5) - x(turn + 0.5), y: CHART.top, height: inner.bottom - CHART.top });
  tip(rect, () => words(turn));
  return href ? svg("a", { href: href(turn), "aria-label": [words(turn)].flat().join(", ") }, rect) : rect;
}

/** Median, middle half and middle 80 % of the numbers of each turn index. */
function bandsByTurn({ columns, label, href, name, diverging }) {
  const ordered = columns.map(sorted);
  const points = ordered.map((column) => [0.1, 0.25, 0.5, 0.75, 0.9].map((share) => quantile(column, share)));
  const ys = extent(points.flat().filter((value) => value !== null), 0);
  const { node, x, y, inner } = frame({ xs: [0.5, columns.length + 0.5], ys, whole: true, label });
  const width = Math.max(1.5, Math.min(16, (x(1) - x(0)) * 0.55));
  points.forEach((five, turn) => {
    if (five[0] === null) return;
    const [low, quarter, middle, upper, high] = five;
    const [left, right] = [x(turn + 1) - width / 2, x(turn + 1) + width / 2];
    const sign = !diverging || !middle ? "" : middle > 0 ? ".plus" : ".minus";
    add(node, [
      svg("rect.band.outer" + sign, { x: left, width, y: y(high), height: Math.max(0.75, y(low) - y(high)), rx: 1 }),
      svg("rect.band.inner" + sign, { x: left, width, y: y(upper), height: Math.max(0.75, y(quarter) - y(upper)), rx: 1 }),
      svg("line.median", { x1: left, x2: right, y1: y(middle), y2: y(middle) }),
    ]);
  });
  const means = columns.map((column, turn) => [turn, mean(column)]).filter((pair) => pair[1] !== null);
  add(node, [svg("path.mean", { d: path(means.map(([turn, value]) => [x(turn + 1), y(value)])) })]);
  const words = (turn) => [
    `${name} at ${turnTitle(turn)}: ${plural(columns[turn].length, "turn")}`,
    `mean ${signed(mean(columns[turn]))}, median ${signed(points[turn][2])}`,
    `middle half ${signed(points[turn][1])} to ${signed(points[turn][3])}`,
    `middle 80 % ${signed(points[turn][0])} to ${signed(points[turn][4])}`,
  ];
  columns.forEach((column, turn) => column.length && add(node, [hitColumn(x, turn, inner, words, href)]));
  return node;
}

/** Counts in `bins` equal parts of the values' interval. */
function histogram({ values, label, name, bins = 24 }) {
  const [low, high] = values.length ? [least(values), most(values)] : [0, 1];
  const size = (high - low || 1) / bins;
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / size))] += 1;
  const { node, x, y, inner } = frame({ xs: [low, low + size * bins], ys: [0, most(counts) || 1], label });
  counts.forEach((count, at) => {
    const from = low + at * size;
    const width = Math.max(1, x(from + size) - x(from) - 1);
    const side = from >= -1e-12 ? "plus" : "minus";
    const hit = svg("rect.hit", { x: x(from), width: width + 1, y: CHART.top, height: inner.bottom - CHART.top });
    tip(hit, () => [`${name} ${num(from)} to ${num(from + size)}`, plural(count, "rollout")]);
    add(node, [count ? svg("rect.bar." + side, { x: x(from), width, y: y(count), height: y(0) - y(count) }) : null, hit]);
  });
  return node;
}

/** A density plot of two numbers, with the mean of each column. */
function density({ pairs, label, xName, yName, cells = [36, 18] }) {
  const xs = extent(pairs.map((pair) => pair[0]));
  const ys = extent(pairs.map((pair) => pair[1]));
  const { node, x, y, inner } = frame({ xs, ys, label });
  const [columns, rows] = cells;
  const counts = new Map();
  const means = range(columns, () => []);
  for (const [px, py] of pairs) {
    const column = Math.min(columns - 1, Math.floor(((px - xs[0]) / (xs[1] - xs[0])) * columns));
    const row = Math.min(rows - 1, Math.floor(((py - ys[0]) / (ys[1] - ys[0])) * rows));
    counts.set(column * rows + row, (counts.get(column * rows + row) || 0) + 1);
    means[column].push([px, py]);
  }
  const width = (inner.right - CHART.left) / columns;
  const height = (inner.bottom - CHART.top) / rows;
  const highest = most([...counts.values()]);
  for (const [cell, count] of counts) {
    const [column, row] = [Math.floor(cell / rows), cell % rows];
    const rect = svg("rect.cell", { x: CHART.left + column * width, y: inner.bottom - (row + 1) * height, width: width - 0.6, height: height - 0.6, rx: 1 });
    rect.style.opacity = 0.15 + 0.85 * Math.sqrt(count / highest);
    tip(rect, () => {
      const near = xs[0] + ((column + 0.5) / columns) * (xs[1] - xs[0]);
      return [plural(count, "rollout"), `${xName} about ${num(near, 1)}`, `mean ${yName} there ${num(mean(means[column].map((pair) => pair[1])))}`];
    });
    add(node, [rect]);
  }
  const line = means.filter((column) => column.length > 1).map((column) => [x(mean(column.map((p) => p[0]))), y(mean(column.map((p) => p[1])))]);
  return add(node, [svg("path.mean", { d: path(line) })]);
}

/** Several series of one number: the mean of all at each step, in the band of their range. */
function seedCurves(seeds, label, { first = 0, every = 1, unit = "step" } = {}) {
  const values = seeds.flat().filter((value) => value !== null);
  const steps = most(seeds.map((curve) => curve.length).concat(1));
  const { node, x, y, inner } = frame({ xs: [first, first + every * Math.max(1, steps - 1)], ys: extent(values), whole: true, label: `${label} by ${unit}` });
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

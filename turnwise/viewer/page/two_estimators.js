"use strict";
// Two estimators on the same rollouts: changes of credit, and changes of sign.

function estimatorsView() {
  const asked = route();
  const which = Math.min(page.index.others.length - 1, Math.trunc(Number(asked.with)) || 0);
  if (!page.index.others[which]) return { node: el("p.notice", {}, "No second estimator was computed for this page.") };
  const moves = movesTo(which);
  const list = new VirtualList({ label: "Turns by how far their credit moves", spec: ".moves", cells: (move) => moveCells(move, which), href: turnLink });
  const flips = moves.filter(({ flip }) => flip);
  const items = ordered(asked.flips ? flips : moves.slice(), ({ distance }) => distance);
  list.show(items);
  results.items = items;
  const set = (changed) => go({ ...asked, ...changed });
  const r = correlation(moves.map(({ own, other }) => [own, other]));
  const node = el("div.page.estimators", {}, el("section", {}, el("h2", {}, "Two estimators on the same rollouts"),
    el("div.filters", {}, el("b", { title: shown(page.index.estimator) }, shortName(page.index.estimator)), "and", page.index.others.length > 1 ? choice("second estimator", null, page.index.others.map((_, at) => String(at)), String(which), (at) => set({ with: at }), (at) => shortName(page.index.others[at])) : el("b", { title: shown(page.index.others[0]) }, shortName(page.index.others[0])),
      button(".chip", [`${num(flips.length)} sign flips only`], () => set({ flips: asked.flips ? "" : "1" }), { "aria-pressed": String(Boolean(asked.flips)) }), el("span.count", {}, plural(items.length, "turn"))),
    el("p.lead", {}, `Correlation ${num(r, 3)}; ${percent(flips.length, moves.length)} of ${num(moves.length)} turns change their sign. Each estimator has its own scale, so a move is measured after both are divided by their root mean square (${num(rootMeanSquare(moves.map((m) => m.own)))} and ${num(rootMeanSquare(moves.map((m) => m.other)))}).`)),
  el("div.twocolumn", {}, scatter(moves, which), el("div.listpage", {}, list.node)));
  return { node, list };
}

function movesTo(which) {
  const moves = page.rollouts.flatMap((rollout) => rollout.entry.turns.advantages.map((own, at) => ({ rollout, at, own, other: rollout.entry.turns.others[which][at] }))).filter(({ other }) => other !== null);
  const sizes = [rootMeanSquare(moves.map(({ own }) => own)) || 1, rootMeanSquare(moves.map(({ other }) => other)) || 1];
  for (const move of moves) {
    move.distance = Math.abs(move.other / sizes[1] - move.own / sizes[0]);
    move.flip = move.own * move.other < -EPSILON;
  }
  return moves;
}

function moveCells({ rollout, at, own, other, flip }, which) {
  const { group, entry } = rollout;
  return [el("span.c-item", {}, shown(group.item)), el("span.c-sibling", {}, "sib " + entry.sibling), el("span.c-turn", {}, turnTitle(at)), el("span.c-credit", {}, heatChip(own)), el("span.arrow", {}, "→"), el("span.c-credit", {}, heatChip(other, null, page.otherColours[which])), el("span.c-badges", {}, flip ? el("span.badge.flip", {}, "sign flip") : null, badgeList(rollout, at))];
}

/** Every turn by both advantages; changes of sign are marked. A path draws all points, since there are many. */
function scatter(moves, which) {
  const size = 420;
  const edge = 34;
  const xs = extent(moves.map(({ own }) => own), 0);
  const ys = extent(moves.map(({ other }) => other), 0);
  const x = scale(xs, edge, size - 8);
  const y = scale(ys, size - edge, 8);
  const axes = svg("svg.chart", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "Advantage by both estimators, a point per turn" });
  for (const tick of ticks(...xs, 5)) add(axes, [svg("line.grid", { x1: x(tick), x2: x(tick), y1: 8, y2: size - edge }), svg("text.tick.mid", { x: x(tick), y: size - edge + 15 }, num(tick))]);
  for (const tick of ticks(...ys, 5)) add(axes, [svg("line.grid", { x1: edge, x2: size - 8, y1: y(tick), y2: y(tick) }), svg("text.tick.end", { x: edge - 5, y: y(tick) + 3 }, num(tick))]);
  add(axes, [svg("line.zero", { x1: x(0), x2: x(0), y1: 8, y2: size - edge }), svg("line.zero", { x1: edge, x2: size - 8, y1: y(0), y2: y(0) }), svg("text.tick.mid", { x: size / 2, y: size - 3 }, shortName(page.index.estimator))]);
  for (const kind of [false, true]) {
    add(axes, [svg("path.points" + (kind ? ".flipped" : ""), { d: moves.filter(({ flip }) => flip === kind).map(({ own, other }) => `M${x(own)} ${y(other)}h0`).join("") })]);
  }
  const box = el("div.pick", {}, axes);
  box.addEventListener("pointermove", (event) => nearest(event, box, moves, x, y, size));
  box.addEventListener("click", (event) => {
    const found = nearest(event, box, moves, x, y, size);
    if (found) location.hash = turnLink(found);
  });
  return el("figure", {}, el("figcaption", {}, el("h3", {}, "A point per turn"), el("div.keys", {}, el("span.key", {}, el("i.fill-main"), "same sign"), el("span.key", {}, el("i.minus"), "sign flip"))), box, el("p.note", {}, ["Across: ", estimatorNode(page.index.estimator), ". Up: ", estimatorNode(page.index.others[which]), ". Points in the upper left and lower right have another sign."]));
}

function nearest(event, box, moves, x, y, size) {
  const place = box.getBoundingClientRect();
  const [px, py] = [((event.clientX - place.left) / place.width) * size, ((event.clientY - place.top) / place.height) * size];
  let found = null;
  let least2 = 64;
  for (const move of moves) {
    const distance = (x(move.own) - px) ** 2 + (y(move.other) - py) ** 2;
    if (distance < least2) [found, least2] = [move, distance];
  }
  const words = document.getElementById("tip");
  words.hidden = !found;
  if (found) replace(words, el("div", {}, `${shown(found.rollout.group.item)}, sibling ${found.rollout.entry.sibling}, ${turnTitle(found.at)}`), el("div", {}, `${signed(found.own)} → ${signed(found.other)}`));
  return found;
}

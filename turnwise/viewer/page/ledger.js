"use strict";
// The credit ledger of a turn: the sum that gives its advantage, and its peers.

/** Rows of a ledger: `{name, value, from, to, total, note}`; `from` and `to` are the ends of the bar. */
function ledgerRows(turn) {
  const { ledger } = turn;
  const rows = [];
  let at = 0;
  const step = (name, value, note) => {
    rows.push({ name, value, from: at, to: at + value, note });
    at += value;
  };
  const total = (name, value, note) => {
    rows.push({ name, value, from: 0, to: value, total: true, note });
    at = value;
  };
  if (ledger.reward !== null || ledger.follows !== null) {
    step(ledger.reward === null ? "not scored" : "reward", ledger.reward ?? 0, partsNote(turn));
    if (ledger.follows !== null) step("+ what follows", ledger.follows, "later rewards and the outcome");
  }
  const several = ledger.terms.length > 1;
  for (const term of ledger.terms) {
    const difference = term.value - (term.baseline ?? 0);
    const result = (term.weight * difference) / (term.divisor ?? 1);
    total("= " + shown(term.name), term.value);
    if (term.baseline !== null) step(`${MINUS} baseline`, -term.baseline, comparedWith(term));
    if (term.divisor !== null) step(`÷ ${num(term.divisor)}`, difference / term.divisor - difference, "divided by a deviation");
    if (term.weight !== 1) step(`× ${num(term.weight)}`, result - difference / (term.divisor ?? 1), "weight");
    if (several) total(`→ from ${shown(term.name)}`, result);
  }
  total("= advantage", ledger.advantage);
  rows.at(-1).last = true;
  return rows;
}

function comparedWith(term) {
  if (term.whole_group) return term.peer_count ? `${plural(term.peer_count, "value")}, its own among them` : "of no sibling";
  return plural(term.peer_count, "peer");
}

function partsNote(turn) {
  const named = Object.entries(turn.parts).map(([name, value]) => {
    const raw = own(turn.raw, name);
    return `${shown(name)} ${signed(value)}${raw !== undefined && raw !== value ? ` (raw ${num(raw)})` : ""}`;
  });
  return named.join(", ");
}

/** The sum of the terms: the advantage, unless it was changed afterwards. */
function termSum(ledger) {
  return ledger.terms.reduce((sum, term) => sum + (term.weight * (term.value - (term.baseline ?? 0))) / (term.divisor ?? 1), 0);
}

function ledgerNode(turn) {
  const { ledger } = turn;
  const rows = ledgerRows(turn);
  const ends = rows.flatMap((row) => [row.from, row.to]);
  const place = scale([Math.min(0, least(ends)), Math.max(0, most(ends))], 2, 98);
  const adds = ledger.terms.length === 0 || Math.abs(termSum(ledger) - ledger.advantage) <= 1e-6 * Math.max(1, Math.abs(ledger.advantage));
  return el("section.ledger", {}, el("h3", {}, "Credit ledger"),
    el("table", {}, rows.map((row) => el("tr" + (row.last ? ".last" : row.total ? ".total" : ""), {},
      el("th", { scope: "row" }, row.name, row.note ? el("small", {}, row.note) : null),
      el("td.bar", { "aria-hidden": "true" }, waterfall(row, place)),
      el("td.n", { title: exact(row.value), "data-exact": exact(row.value) }, aligned(signed(row.value, 4), 4))))),
    keysNode([["plus", "adds"], ["minus", "takes away"], ["fill-quiet", "sum so far"]]),
    el("p.trained", {}, turn.trained ? ["trained on ", el("b", {}, plural(ledger.tokens, "token")), ledger.tokens ? ", each with this advantage" : ""] : ["masked: ", el("b", {}, "no token of this turn is trained")]),
    adds ? null : el("p.note", {}, `These comparisons come to ${signed(termSum(ledger), 4)}; the rest is in the notes.`),
    ledger.notes.length ? el("ul.notes", {}, ledger.notes.map((note) => el("li", {}, shown(note)))) : null);
}

function waterfall({ from, to, total, last, value }, place) {
  const [low, high] = [place(Math.min(from, to)), place(Math.max(from, to))];
  const kind = total && !last ? ".fill-quiet" : value < 0 || (!total && to < from) ? ".minus" : ".plus";
  return svg("svg.waterfall", { viewBox: "0 0 100 12", preserveAspectRatio: "none" },
    svg("line.zero", { x1: place(0), x2: place(0), y1: 0, y2: 12 }),
    svg("rect" + kind, { x: low, y: 2.5, width: Math.max(0.7, high - low), height: 7 }));
}

/** For each comparison: the siblings' values, this one among them, their mean and spread. */
function peersNode(rollout, turn) {
  const { terms } = turn.ledger;
  const compared = terms.filter((term) => term.peers.length);
  if (!compared.length) {
    return el("section", {}, el("h3", {}, "Compared with"), el("p.note", {}, turn.ledger.advantage === 0 && !turn.trained ? "Nobody: the turn is not trained." : "Nobody: no sibling's turn is in its baseline."));
  }
  return el("section.peers", {}, el("h3", {}, "Compared with"), compared.map((term) => {
    const shownPeers = term.peers.slice(0, 64);
    return el("div", {}, el("p.note", {}, terms.length > 1 ? el("b", {}, shown(term.name) + ": ") : null,
      comparedWith(term), term.spread === null ? "" : `, spread ${num(term.spread)}`, term.peer_count > shownPeers.length ? `; the first ${shownPeers.length} are here` : ""),
    dots(term), keysNode([["own-mark", "this turn"], ["peer-mark", "a peer"], ["baseline-line", "baseline"], ["spread-mark", "spread"]]),
    el("table.peerlist", {}, el("tr.own", {}, el("td", {}, `sibling ${rollout.entry.sibling}, this turn`), el("td.n", { title: exact(term.value) }, aligned(num(term.value))), el("td.n.muted", {}, "")),
      shownPeers.map((peer) => el("tr", {}, el("td", {}, link(turnHash(rollout.group.id, peer.sibling, peer.turn), `sibling ${peer.sibling}, ${peer.turn === null ? "whole" : turnTitle(peer.turn)}`)),
        el("td.n", { title: exact(peer.value), "data-exact": exact(peer.value) }, aligned(num(peer.value))), el("td.n.muted", { title: "this one less that one" }, aligned(signed(term.value - peer.value)))))));
  }));
}

/** Values on a line: peers as rings, this one filled, the baseline as a tick, the spread as a band. */
function dots(term) {
  const values = term.peers.map((peer) => peer.value);
  const xs = extent(values.concat(term.value, term.baseline ?? term.value));
  const place = scale(xs, 14, 466);
  const middle = term.baseline ?? mean(values);
  const node = svg("svg.dots", { viewBox: "0 0 480 46", role: "img", "aria-label": `This turn ${num(term.value)} among ${plural(values.length, "peer")}` });
  if (term.spread) add(node, [svg("rect.spread", { x: place(Math.max(xs[0], middle - term.spread)), width: Math.max(1, place(Math.min(xs[1], middle + term.spread)) - place(Math.max(xs[0], middle - term.spread))), y: 10, height: 16, rx: 3 })]);
  add(node, [svg("line.axis", { x1: 8, x2: 472, y1: 18, y2: 18 }), svg("line.baseline", { x1: place(middle), x2: place(middle), y1: 6, y2: 30 })]);
  const taken = new Map();
  for (const peer of term.peers.slice(0, 400)) {
    const x = place(peer.value);
    const above = taken.get(Math.round(x / 6)) || 0;
    taken.set(Math.round(x / 6), above + 1);
    add(node, [tip(svg("circle.peer", { cx: x, cy: 18 - Math.min(12, above * 3), r: 4.5 }), () => [`sibling ${peer.sibling}${peer.turn === null ? "" : ", " + turnTitle(peer.turn)}`, num(peer.value)])]);
  }
  const kind = term.value > middle ? ".plus" : term.value < middle ? ".minus" : ".fill-quiet";
  const text = (x, words) => svg("text.tick.mid", { x: Math.max(40, Math.min(440, x)), y: 42 }, words);
  const near = Math.abs(place(term.value) - place(middle)) < 90;
  return add(node, [svg("rect.own" + kind, { x: place(term.value) - 5, y: 13, width: 10, height: 10, transform: `rotate(45 ${place(term.value)} 18)` }),
    near ? text((place(middle) + place(term.value)) / 2, `this ${num(term.value)} · baseline ${num(middle)}`) : [text(place(term.value), `this ${num(term.value)}`), text(place(middle), `baseline ${num(middle)}`)]]);
}

"use strict";
// The list of rollouts: filtered, sorted, one row each with its advantages as a strip.

const ROLLOUT_COLUMNS = {
  item: { label: "item", by: null },
  sibling: { label: "sib", by: ({ entry }) => -entry.sibling },
  status: { label: "status", by: null },
  score: { label: "score", by: ({ entry }) => entry.score ?? -Infinity },
  outcome: { label: "outcome", by: ({ entry }) => entry.outcome ?? -Infinity },
  turns: { label: "turns", by: ({ acts }) => acts.length },
  tokens: { label: "tokens", by: ({ entry }) => tokensOf(entry) },
  credit: { label: "largest credit", by: ({ entry }) => most(entry.turns.advantages.map(Math.abs)) },
  wall: { label: "time", by: ({ entry }) => entry.wall_s },
  stop: { label: "ended by", by: null },
};

function rolloutsView() {
  const list = new VirtualList({ label: "Rollouts", spec: ".rollouts", cells: rolloutCells, href: ({ group, entry, failure }) => hashOf({ g: group.id, s: (entry || failure).sibling }) });
  const count = el("span.count", { role: "status" });
  const heads = el("div.heads", { role: "presentation" });
  const update = (changed, keep = false) => {
    const asked = { ...route(), ...changed };
    restate(asked);
    const items = matchingRollouts(asked);
    list.show(items, keep);
    count.textContent = `${num(items.length)} of ${num(page.rolloutByEntry.size + failedCount())}`;
    replace(heads, rolloutHeads(asked, update));
  };
  const asked = route();
  const filters = el("div.filters", { role: "search", "aria-label": "Filter rollouts" },
    typed("item or text of the end …", asked.text, (text) => update({ text })),
    choice("status", "any status", counted(page.index.groups.map((group) => group.status)).map(([status]) => status).concat(failedCount() ? ["dropped"] : []), asked.status, (status) => update({ status })),
    choice("end", "any end", endings().map(([words]) => words), asked.end, (end) => update({ end })),
    typed("score from", asked.from, (from) => update({ from }), "number"),
    typed("to", asked.to, (to) => update({ to }), "number"), count);
  update({});
  return { node: el("div.listpage", {}, filters, heads, list.node), list, again: () => update({}, true) };
}

function failedCount() {
  return page.index.groups.reduce((sum, group) => sum + group.failures.length, 0);
}

function matchingRollouts(asked) {
  const needle = (asked.text || "").toLowerCase();
  const [from, to] = [Number(asked.from), Number(asked.to)];
  const dropped = page.index.groups.flatMap((group) => group.failures.map((failure) => ({ group, failure })));
  const kept = [...page.rolloutByEntry.values()].filter(({ group, entry }) =>
    (!asked.status || group.status === asked.status)
    && (!asked.end || ending(entry) === asked.end)
    && (!asked.from || (entry.score !== null && entry.score >= from))
    && (!asked.to || (entry.score !== null && entry.score <= to))
    && (!needle || `${group.item} ${group.id} ${ending(entry)}`.toLowerCase().includes(needle)));
  const failed = asked.end || asked.from || asked.to || (asked.status && asked.status !== "dropped") ? [] : dropped.filter(({ group, failure }) =>
    !needle || `${group.item} ${group.id} ${failure.error}`.toLowerCase().includes(needle));
  const items = asked.status === "dropped" ? failed : kept;
  const column = own(ROLLOUT_COLUMNS, asked.sort);
  if (column && column.by && items === kept) ordered(items, (each) => (asked.up ? -column.by(each) : column.by(each)));
  return items === kept ? items.concat(failed) : items;
}

function rolloutHeads(asked, update) {
  return Object.entries(ROLLOUT_COLUMNS).map(([name, { label, by }]) => {
    if (!by) return el("span.c-" + name, {}, label);
    const is = asked.sort === name;
    const sort = () => update(is && asked.up ? { sort: "", up: "" } : { sort: name, up: is ? "1" : "" });
    return button(".quiet.c-" + name, label + (is ? (asked.up ? " ↑" : " ↓") : ""), sort, { "aria-pressed": String(is), title: "Sort by " + label });
  }).concat(el("span.c-strip", {}, "advantage by turn: blue above 0, orange below"));
}

function rolloutCells({ group, entry, failure, acts }) {
  if (failure) {
    return [el("span.c-item", {}, shown(group.item)), el("span.c-sibling", {}, failure.sibling), el("span.c-status", {}, el("span.status.failed", {}, "dropped")), el("span.c-error", {}, shown(failure.error).slice(0, 300))];
  }
  const passed = hasPassed(entry);
  return [
    el("span.c-item", { title: group.id }, shown(group.item), group.epoch ? el("small", {}, ` · ${group.epoch}`) : null),
    el("span.c-sibling", {}, entry.sibling),
    el("span.c-status", {}, statusNode(group), entry.trunk === null ? null : el("span.status", { title: branchWords(entry) }, `branch of ${entry.trunk}`)),
    el("span.c-score", { title: exact(entry.score) }, passed === null ? null : el("i.dot." + (passed ? "passed" : "failed"), { title: passed ? "passed" : "not passed" }), aligned(num(entry.score))),
    el("span.c-outcome", {}, aligned(num(entry.outcome))), el("span.c-turns", {}, acts.length), el("span.c-tokens", {}, num(tokensOf(entry))),
    el("span.c-credit", {}, creditChip({ group, entry }, entry.turns.advantages.reduce((high, each, at, all) => (Math.abs(each) > Math.abs(all[high]) ? at : high), 0))),
    el("span.c-wall", {}, seconds(entry.wall_s)), el("span.c-stop", {}, shown(ending(entry))),
    el("span.c-strip", {}, group.status === "failed" ? null : strip(entry)),
  ];
}

/** A rollout's advantages as a strip: one rectangle per turn, of equal width in all strips. */
function strip(entry, { height = 12, jump = null, longest = page.longest } = {}) {
  const advantages = entry.turns.advantages;
  const node = svg("svg.strip", { viewBox: `0 0 ${longest} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `Advantages of ${plural(advantages.length, "turn")}` });
  node.style.height = height + "px";
  advantages.forEach((advantage, turn) => {
    const rect = svg("rect", { x: turn, y: 0, width: 1, height: 1 });
    rect.style.fill = heat(advantage);
    if (jump) {
      tip(rect, () => [turnTitle(turn), `advantage ${signed(advantage)}`, `reward ${signed(entry.turns.rewards[turn])}`]);
      rect.addEventListener("click", () => jump(turn));
    }
    add(node, [rect]);
  });
  return node;
}

/** An input that reports its text when typing pauses. */
function typed(placeholder, value, changed, type = "search") {
  let timer = 0;
  return el("input", { type, placeholder, value: value || "", "aria-label": placeholder, step: "any", oninput: ({ target }) => {
    clearTimeout(timer);
    timer = setTimeout(() => changed(target.value), 150);
  } });
}

"use strict";
// The list of turns that match a query, a text, or both.

function turnsView() {
  const asked = route();
  const list = new VirtualList({ label: "Turns", spec: ".turnlist", cells: turnCells, href: turnLink });
  const count = el("span.count", { role: "status" });
  const chips = el("div.chips", { role: "group", "aria-label": "Questions" });
  const cancel = button(".quiet", "cancel", () => {
    cancelSearch();
    count.textContent += ", stopped";
    cancel.hidden = true;
  }, { hidden: true });
  let items = [];
  const update = (changed) => {
    Object.assign(asked, changed);
    restate(asked);
    page.needle = (asked.text || "").toLowerCase();
    const turns = matchingTurns(asked);
    drawChips(chips, asked, update);
    if (asked.text) search(turns);
    else {
      cancelSearch();
      cancel.hidden = true;
      items = turns;
      list.show(items);
      count.textContent = plural(items.length, "turn");
    }
    results.items = items;
  };
  const search = async (turns) => {
    const filtered = Boolean(asked.q || asked.end || asked.at);
    const allowed = new Map(turns.map((turn) => [turn.rollout.entry, new Set()]));
    for (const turn of turns) allowed.get(turn.rollout.entry).add(turn.at);
    items = [];
    results.items = items;
    list.show(items);
    cancel.hidden = false;
    count.textContent = "searching …";
    const whole = await searchTexts(asked.text, (hits) => {
      const kept = filtered ? hits.filter((each) => each.at !== null && allowed.get(each.rollout.entry)?.has(each.at)) : hits;
      if (!kept.length) return;
      // Hits are appended, so that the list does not move.
      for (const each of kept) items.push(each);
      if (items.length === kept.length) list.grow();
    }, (done, of) => {
      list.grow();
      count.textContent = `${plural(items.length, "hit")}, ${percent(done, of)} read`;
    }).catch((error) => {
      count.textContent = error.message;
      return false;
    });
    if (!whole) return;
    cancel.hidden = true;
    const by = own(TURN_ORDERS, asked.sort);
    if (by) list.show(ordered(items, (each) => (each.at === null ? -Infinity : by(each))), true);
    count.textContent = `${plural(items.length, "hit")} in ${plural(new Set(items.map((each) => each.rollout)).size, "rollout")}`;
  };
  const filters = el("div.filters", { role: "search", "aria-label": "Turns" },
    typed("text in any turn …", asked.text, (text) => update({ text })),
    choice("end", "rollout ended by …", endings().map(([words]) => words), asked.end, (end) => update({ end })),
    choice("turn index", "any turn", range(most(page.rollouts.map(({ acts }) => acts.length).concat(0)), String), asked.at, (at) => update({ at }), (at) => turnTitle(Number(at))),
    choice("order", "in order", Object.keys(TURN_ORDERS), asked.sort, (sort) => update({ sort })), passingInput(update), cancel, count);
  update({});
  return { node: el("div.listpage", {}, filters, chips, list.node), list, close: cancelSearch, again: () => asked.text || update({}) };
}

/** The results that `n` and `p` walk through from inside a group. */
const results = { items: [] };

function passingInput(update) {
  if (page.rollouts.every(({ entry }) => entry.passed !== null)) return null;
  const input = el("input", { type: "number", step: "any", value: page.passing === null ? null : Number(page.passing.toPrecision(4)), "aria-label": "Scores from here on count as passed", onchange: () => {
    page.passing = input.value === "" ? null : Number(input.value);
    update({});
  } });
  return el("label.passing", { title: "Rollouts with this score or more count as passed" }, "passed from score ", input);
}

function drawChips(node, asked, update) {
  const on = listed(asked.q);
  replace(node, Object.entries(TURN_QUERIES).map(([name, { label }]) => {
    if (name === "flips" && !page.index.others.length) return null;
    const is = on.includes(name);
    const others = on.filter((each) => each !== name);
    const size = is ? null : matchingTurns({ ...asked, sort: "", q: [...on, name].join(",") }).length;
    return button(".chip", [label, size === null ? null : el("small", {}, num(size))], () => update({ q: (is ? others : [...on, name]).join(",") }), { "aria-pressed": String(is), disabled: !is && size === 0 });
  }));
}

function turnLink({ rollout, at }) {
  return hashOf({ g: rollout.group.id, s: rollout.entry?.sibling, t: at });
}

function turnCells({ rollout, at, around, times }) {
  const { group, entry } = rollout;
  const cells = [el("span.c-item", {}, shown(group.item)), el("span.c-sibling", {}, entry ? "sib " + entry.sibling : "group"), el("span.c-turn", {}, at === null ? (entry ? "opening" : "") : turnTitle(at))];
  if (at !== null) {
    cells.push(el("span.c-credit", {}, creditChip(rollout, at)), el("span.c-reward", {}, entry.turns.rewards[at] === null ? el("span.muted", {}, "not scored") : "reward " + signed(entry.turns.rewards[at])));
  } else cells.push(el("span.c-credit"), el("span.c-reward"));
  if (around !== undefined) return [...cells, el("span.c-around", {}, times > 1 ? el("small", {}, `${times}× `) : null, marked(shown(around), page.needle))];
  return [...cells, el("span.c-score", {}, "score " + num(entry.score)), el("span.c-tokens", {}, num(entry.turns.tokens[at]) + " tok"), el("span.c-stop", {}, shown(ending(entry))), el("span.c-badges", {}, badgeList(rollout, at))];
}

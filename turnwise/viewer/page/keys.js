"use strict";
// Keys, and their help.

const KEYS = [
  ["j  k  ↓  ↑", "next and previous row of a list; next and previous turn of a sibling"],
  ["← →", "in a group: the sibling beside it, at the same turn"],
  ["Enter", "open what is selected: a row, or the credit of a turn"],
  ["Esc", "close what is open; from a group, go back to the list"],
  ["n  p", "next and previous result of the last list of turns"],
  ["[  ]", "previous and next group"],
  ["/", "search all texts"],
  ["1 2 3 4", "overview, rollouts, turns, estimators"],
  ["g", "in a group: go to the turn whose number is typed"],
  ["f  F", "in a transcript: fold or unfold the selected turn, or all"],
  ["d", "light or dark"],
  ["?", "these keys"],
];

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") return escape(event, typing);
  if (typing) return;
  const act = own(KEY_ACTS, event.key);
  if (act && act(event) !== false) event.preventDefault();
}

const KEY_ACTS = {
  j: () => move(0, 1), ArrowDown: () => move(0, 1), k: () => move(0, -1), ArrowUp: () => move(0, -1),
  ArrowRight: () => move(1, 0), ArrowLeft: () => move(-1, 0),
  Enter: (event) => (event.target.closest("a, button, summary") ? false : open()),
  n: () => walk(1), p: () => walk(-1), "[": () => neighbour(-1), "]": () => neighbour(1),
  "/": () => document.getElementById("search").select(),
  1: () => go({ v: "overview" }), 2: () => go({ v: "rollouts" }), 3: () => go({ v: "turns" }), 4: () => go({ v: "estimators" }),
  g: () => document.querySelector(".grouphead input")?.select() ?? false,
  f: () => fold((view) => [view.selected.turn]), F: () => fold((view) => view.siblings[0].actOf.map((_, turn) => turn)),
  d: toggleTheme, "?": toggleHelp,
};

function move(columns, acts) {
  const view = views.current;
  if (view instanceof GroupView) {
    const to = view.moved(columns, acts);
    if (to === null) return;
    if (!document.getElementById("drawer").hidden) {
      restate(inGroup({ g: view.group.id, s: view.siblings[to.column].entry.sibling, t: to.turn }));
      openDrawer(view.siblings[to.column], to.turn);
    }
    view.show(to.column, to.turn);
  } else if (view?.list && acts) view.list.move(acts);
  else return false;
}

function open() {
  const view = views.current;
  if (!(view instanceof GroupView)) return false;
  const { column, turn } = view.selected;
  go(inGroup({ g: view.group.id, s: view.siblings[column].entry.sibling, t: turn }));
}

function fold(turnsOf) {
  const view = views.current;
  if (!view?.survey) return false;
  const turns = turnsOf(view);
  view.fold(turns, turns.some((turn) => !view.folded.has(turn)));
}

function walk(step) {
  const { items } = results;
  if (!items.length) return;
  const asked = route();
  const here = items.findIndex(({ rollout, at }) => rollout.group.id === asked.g && String(rollout.entry?.sibling) === asked.s && String(at) === asked.t);
  const to = items[Math.max(0, Math.min(items.length - 1, here + step))];
  location.hash = turnLink(to);
}

function neighbour(step) {
  const { groups } = page.index;
  const view = views.current;
  const to = view instanceof GroupView ? groups[groups.indexOf(view.group) + step] : null;
  if (!to) return false;
  go({ g: to.id });
}

function escape(event, typing) {
  const help = document.getElementById("help");
  if (help) return help.remove();
  if (typing) return event.target.blur();
  const asked = route();
  if (asked.t !== undefined) go(inGroup({ g: asked.g, s: asked.s }));
  else if (asked.v === "group") go(asked.only ? { g: asked.g } : { v: "rollouts" });
}

function toggleHelp() {
  const open = document.getElementById("help");
  if (open) return open.remove();
  const close = button(".quiet", "close", () => document.getElementById("help").remove());
  document.body.append(el("div", { id: "help", role: "dialog", "aria-label": "Keys", "aria-modal": "true" }, el("div.helpbox", {}, el("h2", {}, "Keys"), el("table", {}, KEYS.map(([keys, words]) => el("tr", {}, el("th", { scope: "row" }, keys.split("  ").map((each) => el("kbd", {}, each))), el("td", {}, words)))),
    el("p.note", {}, "Turns are counted from 1, siblings from 0 as in the record. Blue and + is credit above the peers, orange and − below. A passed rollout is one that its evaluation says passed, or one with at least the score that Turns names."), close)));
  close.focus();
}

function toggleTheme() {
  const { style } = document.documentElement;
  const dark = style.colorScheme ? style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  style.colorScheme = keptTheme(dark ? "light" : "dark");
}

/** Keep a theme, or return the kept one; a page from disk may have no storage, and forgets it. */
function keptTheme(theme = "") {
  try {
    if (theme) localStorage.setItem("turnwise-theme", theme);
    return localStorage.getItem("turnwise-theme");
  } catch {
    return theme;
  }
}

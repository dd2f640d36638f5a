"use strict";
// Where the reader is stands in the address, so that back, forward and a link to a turn work.

const VIEWS = { overview: "Overview", rollouts: "Rollouts", turns: "Turns", estimators: "Estimators", credit: "Which credit" };

/** Whether this page has something to show there. */
function hasView(name) {
  if (name === "credit") return page.index.credit !== undefined;
  return own(VIEWS, name) !== undefined && (name !== "estimators" || page.index.others.length > 0);
}

/** The address as a mapping; `v` is the view, and a group's own is `group`. */
function route() {
  const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (asked.g !== undefined) asked.v = "group";
  else if (!hasView(asked.v)) asked.v = "overview";
  return asked;
}

/** A link's address: what is empty is left out. */
function hashOf(asked) {
  const kept = Object.entries(asked).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return "#" + new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
}

/** A place in a group: the two siblings that stand beside each other there stay chosen. */
function inGroup(asked) {
  const now = route();
  return now.g === asked.g ? { ...asked, two: now.two } : asked;
}

function turnHash(groupId, sibling, turn) {
  return hashOf(inGroup({ g: groupId, s: sibling, t: turn }));
}

function go(asked) {
  location.hash = hashOf(asked);
}

/** Change the address without a step in the history: what is typed, what is selected. */
function restate(asked) {
  history.replaceState(null, "", hashOf(asked));
}

/** The address to pass on: with the file or server it is on. */
function fullLink(hash) {
  return location.href.split("#")[0] + hash;
}

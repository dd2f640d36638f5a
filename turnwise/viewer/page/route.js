"use strict";
// The address holds the reader's place, so that back, forward and links to turns work.

const VIEWS = { overview: "Overview", rollouts: "Rollouts", turns: "Turns", estimators: "Estimators", credit: "Which credit" };

/** Whether the page has data for a view. */
function hasView(name) {
  if (name === "credit") return page.index.credit !== undefined;
  return own(VIEWS, name) !== undefined && (name !== "estimators" || page.index.others.length > 0);
}

/** The address as a mapping; `v` is the view, `group` for a group. */
function route() {
  const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (asked.g !== undefined) asked.v = "group";
  else if (!hasView(asked.v)) asked.v = "overview";
  return asked;
}

/** The address of a link, without empty values. */
function hashOf(asked) {
  const kept = Object.entries(asked).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return "#" + new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
}

/** A place in a group; keep the choice of siblings. */
function inGroup(asked) {
  const now = route();
  return now.g === asked.g ? { ...asked, only: now.only } : asked;
}

function turnHash(groupId, sibling, turn) {
  return hashOf(inGroup({ g: groupId, s: sibling, t: turn }));
}

function go(asked) {
  location.hash = hashOf(asked);
}

/** Change the address without a step in the history, for typed text and selections. */
function restate(asked) {
  history.replaceState(null, "", hashOf(asked));
}

/** The address to share, with the file or server. */
function fullLink(hash) {
  return location.href.split("#")[0] + hash;
}

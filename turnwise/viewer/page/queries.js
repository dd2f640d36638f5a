"use strict";
// Queries of turns and rollouts on the index.

const EPSILON = 1e-12;

/** Name → predicate of a turn; all selected ones must hold. `at` is the index of the turn in the columns. */
const TURN_QUERIES = {
  "plus-failed": {
    label: "positive credit in a failed rollout",
    holds: ({ entry }, at) => entry.turns.advantages[at] > EPSILON && hasPassed(entry) === false,
  },
  "minus-passed": {
    label: "negative credit in a passed one",
    holds: ({ entry }, at) => entry.turns.advantages[at] < -EPSILON && hasPassed(entry) === true,
  },
  "not-scored": { label: "not scored", holds: ({ entry }, at) => entry.turns.rewards[at] === null && entry.turns.kind[at] !== "s" },
  rewarded: { label: "rewarded", holds: ({ entry }, at) => Boolean(entry.turns.rewards[at]) },
  "no-credit": { label: "no credit", holds: ({ entry }, at) => Math.abs(entry.turns.advantages[at]) <= EPSILON },
  untrained: { label: "masked (not trained)", holds: ({ entry }, at) => !entry.turns.trained[at] },
  "no-peer": { label: "no peer", holds: ({ entry }, at) => entry.turns.alone[at] === 1 },
  "tool-error": { label: "tool error", holds: ({ entry }, at) => entry.turns.tool_errors[at] > 0 },
  fork: { label: "fork", holds: ({ entry }, at) => entry.turns.forks[at] > 0 },
  condensed: { label: "condensed context", holds: ({ entry }, at) => entry.turns.condensed[at] > 0 },
  summary: { label: "summary", holds: ({ entry }, at) => entry.turns.kind[at] === "s" },
  last: { label: "last turn", holds: ({ entry }, at) => at === entry.turns.kind.length - 1 },
  flips: {
    label: "sign differs between estimators",
    holds: ({ entry }, at) => entry.turns.others.some((other) => other[at] * entry.turns.advantages[at] < -EPSILON),
  },
};

/** Name → number of a turn; the largest comes first. */
const TURN_ORDERS = {
  "largest credit": (turn) => Math.abs(advantageOf(turn)),
  "most positive": advantageOf,
  "most negative": (turn) => -advantageOf(turn),
  "most tokens": ({ rollout, at }) => rollout.entry.turns.tokens[at],
};

function advantageOf({ rollout, at }) {
  return rollout.entry.turns.advantages[at];
}

/** The turns of a query: `q` names of predicates, `end` the end of the rollout, `at` an index among acts. */
function matchingTurns(asked) {
  const tests = listed(asked.q).filter((name) => own(TURN_QUERIES, name)).map((name) => TURN_QUERIES[name].holds);
  const act = asked.at === undefined ? null : Number(asked.at);
  const found = [];
  for (const rollout of page.rollouts) {
    if (asked.end && ending(rollout.entry) !== asked.end) continue;
    const count = rollout.entry.turns.kind.length;
    for (let at = rollout.entry.replayed; at < count; at += 1) {
      if (act !== null && rollout.actOf[at] !== act) continue;
      if (tests.every((holds) => holds(rollout, at))) found.push({ rollout, at });
    }
  }
  const by = own(TURN_ORDERS, asked.sort);
  return by ? ordered(found, by) : found;
}

/** Sort by a number, largest first; stable. */
function ordered(items, by) {
  const keys = new Map(items.map((item) => [item, by(item)]));
  return items.sort((a, b) => keys.get(b) - keys.get(a));
}

function listed(text) {
  return text ? text.split(",") : [];
}

/** Ends of rollouts, the most frequent first. */
function endings() {
  return counted(page.rollouts.map(({ entry }) => ending(entry)));
}

/** [value, count], the most frequent first. */
function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

/** Labels of a turn by its numbers in the index. */
function badges({ group, entry }, at) {
  const { turns, trunk, replayed } = entry;
  const branches = group.rollouts.filter((each) => each.trunk === entry.sibling && each.replayed === at).map(({ sibling }) => sibling);
  return [
    at < replayed && ["replayed", `${turnTitle(at)} of sibling ${trunk}, which trains it, played again`],
    trunk !== null && at === replayed && [branchWords(entry), "From here on it plays by itself"],
    branches.length && [`branched: sibling ${branches.join(", ")}`, "Siblings that play on from here in another way"],
    turns.kind[at] === "s" && ["summary", "The model was asked to shorten the conversation"],
    turns.kind[at] === "u" && ["undelivered", "The agent had stopped waiting for it: it has no reward of its own"],
    turns.forks[at] && ["fork", "A new token row begins here"],
    turns.condensed[at] && ["condensed", "The model saw less than all that came before"],
    !turns.trained[at] && at >= replayed && ["masked", "Not trained: its tokens are masked and it has no advantage", ".masked"],
    turns.alone[at] === 1 && ["no peer", "No sibling turn to be compared with", ".no-peer"],
    turns.tool_errors[at] && ["tool error", plural(turns.tool_errors[at], "tool call") + " failed", ".tool-error"],
  ].filter(Boolean);
}

function badgeList(rollout, at) {
  return badges(rollout, at).map(([words, title, kind = ""]) => el("span.badge" + kind, { title }, words));
}

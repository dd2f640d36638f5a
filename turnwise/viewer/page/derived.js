"use strict";
// Values derived from the index: rollouts by acts, scales, statistics.

const page = {
  index: null,
  /** The groups that count: no failed one that was done again. */
  groups: [],
  /** The rollouts of these: `{group, entry, acts, actOf}`. */
  rollouts: [],
  groupById: new Map(),
  rolloutByEntry: new Map(),
  /** The advantage with full colour. */
  fullColour: 1,
  /** The advantage with full colour, by each of the other estimators. */
  otherColours: [],
  /** Turns of the longest rollout. */
  longest: 1,
  /** Scores from this one count as passed, without a verdict of an evaluation; `null` for several environments. */
  passing: null,
};

function takeIndex(index) {
  page.index = index;
  page.groupById = new Map(index.groups.map((group) => [group.id, group]));
  page.groups = countedOnce(index.groups);
  page.rolloutByEntry = new Map(index.groups.flatMap((group) => group.rollouts.map((entry) => [entry, page.rolloutByEntry.get(entry) || rolloutOf(group, entry)])));
  page.rollouts = page.groups.flatMap((group) => group.rollouts.map((entry) => page.rolloutByEntry.get(entry)));
  page.fullColour = fullColourOf(({ turns }) => turns.advantages);
  page.otherColours = index.others.map((_, which) => fullColourOf(({ turns }) => turns.others[which]));
  page.longest = most(page.rollouts.map(({ entry }) => entry.turns.kind.length).concat(1));
  const scores = page.rollouts.map(({ entry }) => entry.score).filter((score) => score !== null);
  const isOne = new Set(index.groups.map(({ env }) => env)).size === 1;
  page.passing = scores.length && isOne ? (least(scores) + most(scores)) / 2 : null;
}

/** As in the summary: a failed group does not count beside one of its item and epoch that did not fail, or failed before. */
function countedOnce(groups) {
  const key = ({ item, epoch }) => JSON.stringify([item, epoch]);
  const seen = new Set(groups.filter(({ status }) => status !== "failed").map(key));
  return groups.filter((group) => group.status !== "failed" || (!seen.has(key(group)) && seen.add(key(group))));
}

function fullColourOf(advantagesOf) {
  const sizes = page.rollouts.flatMap(({ entry }) => advantagesOf(entry)).filter((each) => each).map(Math.abs);
  return quantile(sorted(sizes), 0.95) || 1;
}

/** Rows of a group are acts: a summary is in the row of the next act, as in credit. */
function rolloutOf(group, entry) {
  // An estimator that refuses the group has no number for its turns.
  entry.turns.others = entry.turns.others.map((other) => other ?? entry.turns.advantages.map(() => null));
  const acts = [];
  const actOf = [];
  [...entry.turns.kind].forEach((kind, turn) => {
    actOf.push(acts.length);
    if (kind !== "s") acts.push(turn);
  });
  return { group, entry, acts, actOf };
}

function findRollout(groupId, sibling) {
  const entry = page.groupById.get(groupId)?.rollouts.find((each) => each.sibling === sibling);
  return entry && page.rolloutByEntry.get(entry);
}

function hasPassed(entry) {
  if (entry.passed !== null) return entry.passed;
  return entry.score === null || page.passing === null ? null : entry.score >= page.passing;
}

function branchWords({ trunk, replayed }) {
  return `branch of sibling ${trunk} from ${turnTitle(replayed)}`;
}

/** The reason for the end, in the environment's words if it has any. */
function ending(entry) {
  return entry.end ? `${entry.stop}: ${entry.end}` : entry.stop;
}

/** Labels count from 1; the record and links count from 0. */
function turnTitle(turn) {
  return "turn " + (turn + 1);
}

// Statistics. No list is spread into arguments: a record has more turns than a call permits.

function sorted(values) {
  return Float64Array.from(values).sort();
}

function quantile(ordered, share) {
  if (!ordered.length) return null;
  const at = share * (ordered.length - 1);
  const below = ordered[Math.floor(at)];
  return below + (ordered[Math.ceil(at)] - below) * (at - Math.floor(at));
}

function least(values) {
  return values.reduce((low, value) => (value < low ? value : low), Infinity);
}

function most(values) {
  return values.reduce((high, value) => (value > high ? value : high), -Infinity);
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function rootMeanSquare(values) {
  return Math.sqrt(mean(values.map((value) => value * value)) || 0);
}

/** Pearson's r; `null` if one side is constant. */
function correlation(pairs) {
  const [mx, my] = [mean(pairs.map((pair) => pair[0])), mean(pairs.map((pair) => pair[1]))];
  let [xx, yy, xy] = [0, 0, 0];
  for (const [x, y] of pairs) {
    xx += (x - mx) ** 2;
    yy += (y - my) ** 2;
    xy += (x - mx) * (y - my);
  }
  return xx > 1e-18 && yy > 1e-18 ? xy / Math.sqrt(xx * yy) : null;
}

/** Return `make(index)` for `count` indices. */
function range(count, make = (at) => at) {
  return Array.from({ length: count }, (_, at) => make(at));
}

/** An estimator's name, without its parameters. */
function shortName(estimator) {
  return shown(estimator).replaceAll(/\([^()]*\)/g, "");
}

/** An estimator's name, with its parameters in small type. */
function estimatorNode(estimator) {
  const [name, ...params] = shown(estimator).split("(");
  return [el("b", {}, name), params.length ? el("small", {}, " " + params.join("(").replace(/\)$/, "").replaceAll("(", " ")) : null];
}

/** The background of a signed number: orange below zero, blue above, none at zero; `full` is the strongest. */
function heat(value, full = page.fullColour) {
  if (!value) return "transparent";
  const share = Math.min(1, Math.abs(value) / full);
  const strength = Math.round(12 + 70 * Math.sqrt(share));
  return `color-mix(in oklab, var(${value > 0 ? "--plus" : "--minus"}) ${strength}%, transparent)`;
}

/** A signed number on its colour; the printed sign repeats the information. */
function heatChip(value, title, full) {
  return el("span.heat", { style: { background: heat(value, full) }, title: title || exact(value) }, aligned(signed(value)));
}

/** A turn's advantage; a refused group has none. */
function creditChip({ group, entry }, turn) {
  return group.status === "failed" ? null : heatChip(entry.turns.advantages[turn], "advantage " + exact(entry.turns.advantages[turn]));
}

"use strict";
// Full-text search: inflates blocks one by one, reports hits at once; a new search ends the old one.

const SLICE_MS = 14;

let searching = 0;

/** Calls `found(hits)` and `progress(done, of)`; resolves to whether it was complete. */
async function searchTexts(needle, found, progress) {
  const own = ++searching;
  const wanted = needle.toLowerCase();
  const places = page.index.groups.flatMap((group) => [{ group, name: group.block, entry: null }, ...group.rollouts.flatMap((entry) => entry.blocks.map((name) => ({ group, entry, name })))]);
  // JSON has several notations of quotes and non-ASCII text: parse every block then.
  const quick = /^[\x20-\x7e]+$/.test(wanted) && !/["\\/]/.test(wanted) ? wanted : null;
  let resting = performance.now();
  for (let at = 0; at < places.length; at += 1) {
    const { group, entry, name } = places[at];
    const hits = await hitsIn(group, entry, name, wanted, quick);
    if (own !== searching) return false;
    if (hits.length) found(hits);
    if (performance.now() - resting > SLICE_MS || at === places.length - 1) {
      progress(at + 1, places.length);
      await pause();
      if (own !== searching) return false;
      resting = performance.now();
    }
  }
  return true;
}

function cancelSearch() {
  searching += 1;
}

async function hitsIn(group, entry, name, wanted, quick) {
  let value = keptBlock(name);
  if (!value) {
    const text = await blockText(name);
    if (quick !== null && !text.toLowerCase().includes(quick)) return [];
    value = JSON.parse(text);
  }
  return entry === null ? groupHits(group, value, wanted) : rolloutHits(group, entry, value, wanted);
}

function rolloutHits(group, entry, value, wanted) {
  const rollout = findRollout(group.id, entry.sibling);
  const hits = value.turns.flatMap((turn) => hit(rollout, turn.index, turnText(turn) + turn.judge_calls.map(judgeText).join(""), wanted));
  const opening = value.prompt.map((message) => plain(message.content)).join("\n") + value.judge_calls.map(judgeText).join("");
  return hit(rollout, null, opening, wanted).concat(hits);
}

function groupHits(group, value, wanted) {
  const text = value.failures.map((failure) => `${plain(failure.error)}\n${plain(failure.traceback)}`).join("\n") + (value.error || "") + value.judge_calls.map(judgeText).join("");
  return hit({ group, entry: null }, null, text, wanted);
}

function judgeText(call) {
  return "\n" + plain(call.answer);
}

/** One hit for a text, with the words around the first match. */
function hit(rollout, at, text, wanted) {
  const lower = text.toLowerCase();
  const first = lower.indexOf(wanted);
  if (first < 0) return [];
  let times = 0;
  for (let next = first; next >= 0 && times < 1000; next = lower.indexOf(wanted, next + wanted.length)) times += 1;
  const from = Math.max(0, first - 40);
  return [{ rollout, at, times, around: (from ? "…" : "") + text.slice(from, first + wanted.length + 120).replace(/\s+/g, " ") }];
}

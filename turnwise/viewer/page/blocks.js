"use strict";
// Blocks of the record: gzip'd JSON in the file or on the server, read on demand; recent ones are cached.

const MOST_KEPT_CHARS = 96e6;

const blocks = {
  /** Name → {value, chars}, the least recently used first. */
  kept: new Map(),
  pending: new Map(),
  chars: 0,
};

const parsed = new Promise((go) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", go, { once: true });
  else go();
});

/** Return the value of a block; errors name it. */
async function block(name) {
  const found = blocks.kept.get(name);
  if (found) {
    blocks.kept.delete(name);
    blocks.kept.set(name, found);
    return found.value;
  }
  if (!blocks.pending.has(name)) {
    const reading = blockText(name).then((text) => keep(name, text)).finally(() => blocks.pending.delete(name));
    blocks.pending.set(name, reading);
  }
  return blocks.pending.get(name);
}

function forgetBlocks() {
  blocks.kept.clear();
  blocks.pending.clear();
  blocks.chars = 0;
}

/** Whether a block is cached. */
function isKept(name) {
  return blocks.kept.has(name);
}

function keep(name, text) {
  const value = JSON.parse(text);
  blocks.kept.set(name, { value, chars: text.length });
  blocks.chars += text.length;
  for (const [oldest, each] of blocks.kept) {
    if (blocks.chars <= MOST_KEPT_CHARS || oldest === name) break;
    blocks.kept.delete(oldest);
    blocks.chars -= each.chars;
  }
  return value;
}

/** Return the JSON text of a block: a search looks at it before parsing. */
async function blockText(name) {
  let node = document.getElementById("block-" + name);
  if (node === null) {
    await parsed;
    node = document.getElementById("block-" + name);
  }
  try {
    return await inflated(node === null ? await served("block/" + encodeURIComponent(name)) : bytesOf(node.textContent));
  } catch (error) {
    throw new Error(`block ${name} cannot be read: ${error.message}`);
  }
}

/** Read the index from the file, or from the server of the page. */
async function readIndex() {
  const node = document.getElementById("block-index");
  return JSON.parse(await inflated(node === null ? await served("index") : bytesOf(node.textContent)));
}

async function served(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

async function inflated(bytes) {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return new TextDecoder().decode(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function bytesOf(base64) {
  const text = base64.trim();
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Return a turn of a rollout, and its block. */
async function turnOf(rollout, turn) {
  const names = rollout.blocks;
  const known = (rollout.ranges ||= new Array(names.length).fill(null));
  let [low, high] = [0, names.length - 1];
  // Turns are ordered over the blocks: binary search.
  let middle = Math.min(high, Math.floor((turn / Math.max(1, rollout.turns.kind.length)) * names.length));
  while (low <= high) {
    const range = known[middle];
    if (range === null || (range[0] <= turn && turn <= range[1])) {
      const value = await block(names[middle]);
      const found = value.turns.find((each) => each.index === turn);
      if (found) return found;
      if (value.turns.length) known[middle] = [value.turns[0].index, value.turns.at(-1).index];
      else known[middle] = [Infinity, Infinity];
    }
    if (turn < known[middle][0]) high = middle - 1;
    else low = middle + 1;
    middle = (low + high) >> 1;
  }
  throw new Error(`${turnTitle(turn)} is not in this page`);
}

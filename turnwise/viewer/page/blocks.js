"use strict";
// Blocks of the record: gzip'd JSON in the file or on the server, read on demand; recent ones are cached.

const MOST_KEPT_CHARS = 96e6;

/** `kept`: name → {value, chars, reading}, the least recently used first. */
const blocks = { kept: new Map(), chars: 0 };

const parsed = new Promise((go) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", go, { once: true });
  else go();
});

/** Return the value of a block; errors name it. */
function block(name) {
  const entry = blocks.kept.get(name) || { value: null, chars: 0 };
  blocks.kept.delete(name);
  blocks.kept.set(name, entry);
  entry.reading ||= readBlock(name, entry).catch((error) => {
    blocks.kept.delete(name);
    throw error;
  });
  return entry.reading;
}

async function readBlock(name, entry) {
  const text = await blockText(name);
  Object.assign(entry, { value: JSON.parse(text), chars: text.length });
  blocks.chars += text.length;
  for (const [oldest, each] of blocks.kept) {
    if (blocks.chars <= MOST_KEPT_CHARS || each === entry) break;
    if (each.value === null) continue;
    blocks.kept.delete(oldest);
    blocks.chars -= each.chars;
  }
  return entry.value;
}

/** The value of a block if it is cached. */
function keptBlock(name) {
  return blocks.kept.get(name)?.value;
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
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Return a turn of a rollout. */
async function turnOf({ blocks: names, starts }, turn) {
  const at = starts.findLastIndex((start) => start <= turn);
  const found = (await block(names[at])).turns[turn - starts[at]];
  if (!found) throw new Error(`${turnTitle(turn)} is not in this page`);
  return found;
}

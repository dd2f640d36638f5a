"use strict";
// Formats numbers and texts.

const MINUS = "\u2212";
const FOLD_CHARS = 900;
const FOLD_LINES = 14;

// Made once: `toLocaleString` makes one for each number, and a chart of 500 turns has thousands.
const DECIMALS = [0, 1, 2, 3, 4].map((digits) => new Intl.NumberFormat("en-US", { maximumFractionDigits: digits }));

/** Up to three decimals, without trailing zeros. */
function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size !== 0 && (size >= 1e7 || size < 5e-4)) text = size.toExponential(2).replace(/\.?0*e\+?/, "e");
  else text = DECIMALS[size >= 1000 ? Math.min(1, digits) : digits].format(size);
  return (value < 0 ? MINUS : "") + text;
}

/** A number that always has a sign. */
function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : "") + num(value, digits);
}

/** A number with figure spaces in place of missing decimals, so that a column is aligned. */
function aligned(text, digits = 3) {
  if (!/\d$/.test(text) || text.includes("e")) return text;
  const after = text.includes(".") ? text.length - text.indexOf(".") : 0;
  return text + (after ? "" : "\u2008") + "\u2007".repeat(Math.max(0, digits - Math.max(0, after - 1)));
}

/** All of a number's digits, as the record has them. */
function exact(value) {
  return value === null || value === undefined ? "none" : String(value);
}

function percent(part, whole) {
  return whole ? num((100 * part) / whole, part === whole ? 0 : 1) + " %" : "–";
}

function plural(count, word, words) {
  return num(count) + " " + (count === 1 ? word : words || word + "s");
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return num(value * 1000, value < 0.01 ? 1 : 0) + " ms";
  return value < 120 ? num(value, 1) + " s" : num(value / 60, 1) + " min";
}

// Controls, directions, invisible characters and lone surrogates: shown as names, without effect.
const HARMFUL =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;

/** Printable text: `\x1b[31m` as `␛[31m`, an override of direction by its name. */
function shown(text) {
  return String(text).replace(/\r\n/g, "\n").replace(HARMFUL, visible);
}

function visible(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  if (code === 0x2028 || code === 0x2029) return "\n";
  return "⟨U+" + code.toString(16).toUpperCase().padStart(4, "0") + "⟩";
}

/** A `Text` as one string; a cut is described in its place. */
function plain(text) {
  if (text === null || text === undefined) return "";
  if (typeof text === "string") return text;
  return `${text.head}\n[… ${cutWords(text)} …]\n${text.tail}`;
}

function cutWords(text) {
  return `${num(text.chars - text.head.length - text.tail.length)} of ${num(text.chars)} characters are not in this page`;
}

/** A text, folded if long, with `needle` marked; Markdown unless `mono`. */
function textBlock(text, { spec = "div.text", needle = "" } = {}) {
  const read = spec.endsWith(".mono") ? marked : markdownNodes;
  if (text === null || text === undefined || text === "") return null;
  const parts = typeof text === "string" ? [text] : [text.head, text, text.tail];
  const whole = parts.filter((part) => typeof part === "string").join("");
  const node = el(spec, { dir: "auto" });
  if (whole.length <= FOLD_CHARS && whole.split("\n", FOLD_LINES + 1).length <= FOLD_LINES) return textParts(node, parts, needle, read);
  const at = needle ? whole.toLowerCase().indexOf(needle) : -1;
  const from = at > FOLD_CHARS / 2 ? at - 120 : 0;
  const folded = () => {
    const size = foldedSize(whole, from);
    replace(node, from ? "… " : null, read(shown(whole.slice(from, from + size)), needle), "…");
    more.textContent = `show all ${num(typeof text === "string" ? text.length : text.chars)} characters`;
  };
  const more = button(".quiet.more", "", (event) => {
    event.stopPropagation();
    if (more.getAttribute("aria-expanded") === "true") folded();
    else {
      textParts(replace(node), parts, needle, read);
      more.textContent = "show less";
    }
    more.setAttribute("aria-expanded", String(more.textContent === "show less"));
  }, { "aria-expanded": "false" });
  folded();
  return el("div.folded", {}, node, more);
}

// A long text is in pieces, so that the browser lays out only visible ones.
const PIECE = 20_000;

function textParts(node, parts, needle, read) {
  for (const part of parts) {
    if (typeof part !== "string") add(node, el("span.cut", {}, `[… ${cutWords(part)} …]`));
    else if (part.length <= PIECE) add(node, read(shown(part), needle));
    else for (const piece of pieces(part)) add(node, el("div.piece", {}, marked(shown(piece), needle)));
  }
  return node;
}

/** Pieces that end at line ends, if there are any. */
function* pieces(text) {
  for (let start = 0; start < text.length; ) {
    const line = text.lastIndexOf("\n", start + PIECE);
    const end = start + PIECE >= text.length ? text.length : line > start ? line + 1 : start + PIECE;
    yield text.slice(start, end);
    start = end;
  }
}

function foldedSize(text, from) {
  let end = from;
  for (let line = 0; line < FOLD_LINES - 2 && end >= 0; line += 1) end = text.indexOf("\n", end + 1);
  const size = (end < 0 ? text.length : end) - from;
  return Math.min(size, FOLD_CHARS - 150);
}

/** The text with matches of `needle` (lower case) in `mark`s. */
function marked(text, needle) {
  if (!needle) return text;
  const lower = text.toLowerCase();
  // A few characters change their length in lower case: mark nothing then.
  if (lower.length !== text.length) return text;
  const found = [];
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    found.push(text.slice(from, at), el("mark", {}, text.slice(at, at + needle.length)));
    from = at + needle.length;
  }
  found.push(text.slice(from));
  return found;
}

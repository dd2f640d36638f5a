"use strict";
// Some Markdown as elements: headings, lists, fenced and inline code, bold; boards and tables in monospace.

const INLINE = /(`[^`\n]+`|\*\*(?=\S)[^*\n]*[^*\s]\*\*)/;
/** Matches cells of one or two characters, lines of a table, boxes, and columns made with spaces. */
const GRID_LINE = /^\s*\S{1,2}(?:\s+\S{1,2}){2,}\s*$|^\s*\|.*\||[\u2500-\u259f]|^\s*\+[-=+]+\+|\S\s{2,}\S+\s{2,}\S/;
const CELLS = /^[^\sa-z]{3,60}$/;

/** The nodes of a printable text, with `needle` marked. */
function markdownNodes(text, needle) {
  const lines = text.split("\n");
  const nodes = [];
  let said = [];
  const flush = () => {
    if (said.length) nodes.push(el("div", {}, inlineNodes(said.join("\n"), needle)));
    said = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)/.exec(line)?.[1];
    const end = fence ? lines.findIndex((each, index) => index > at && each.trim().startsWith(fence)) : gridEnd(lines, at);
    const heading = /^#{1,6}\s+(\S.*)$/.exec(line);
    const item = /^(\s*)(?:[-*+]|(\d{1,4}[.)]))\s+(\S.*)$/.exec(line);
    if (fence || end > at + 1) {
      const until = fence && end < 0 ? lines.length : end;
      flush();
      nodes.push(el("div.code", {}, marked(lines.slice(fence ? at + 1 : at, until).join("\n"), needle)));
      at = fence ? until : until - 1;
    } else if (heading) {
      flush();
      nodes.push(el("div.heading", {}, inlineNodes(heading[1], needle)));
    } else if (item) {
      flush();
      nodes.push(el("div.item", { style: { "--depth": Math.min(8, item[1].length >> 1) } }, el("span", {}, item[2] || "•"), el("div", {}, inlineNodes(item[3], needle))));
    } else said.push(line);
  }
  flush();
  return nodes;
}

/** The end of the lines that need monospace, from this one on. */
function gridEnd(lines, from) {
  let end = from;
  while (end < lines.length && (GRID_LINE.test(lines[end]) || (CELLS.test(lines[end]) && lines[end].length === lines[from].length))) end += 1;
  return end;
}

function inlineNodes(text, needle) {
  return text.split(INLINE).map((part, at) => (at % 2 === 0 ? marked(part, needle) : part[0] === "`" ? el("code", {}, marked(part.slice(1, -1), needle)) : el("b", {}, marked(part.slice(2, -2), needle))));
}

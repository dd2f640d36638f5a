"use strict";
// What a transcript needs of the whole rollout: names of threads, and repeated results.

const REPEATED_CHARS = 120;

async function surveyOf(entry) {
  const parts = await Promise.all(entry.blocks.map(block));
  const threads = new Map();
  const firstTurns = new Map();
  for (const turn of parts.flatMap(({ turns }) => turns)) {
    for (const { content } of turn.results) {
      const text = plain(content);
      if (text.length > REPEATED_CHARS && !firstTurns.has(text)) firstTurns.set(text, turn.index);
    }
    if (turn.thread === null) continue;
    if (!threads.has(turn.thread)) threads.set(turn.thread, { name: threadName(turn, parts[0].prompt), turns: [] });
    threads.get(turn.thread).turns.push(turn.index);
  }
  return { threads, firstTurns };
}

/** A thread has no name of its own: the first line of its system prompt, or of the first message that it saw. */
function threadName(turn, prompt) {
  const saw = (turn.saw || [{ start: 0, end: prompt.length }]).flatMap(({ message, start, end }) => message || prompt.slice(start, end));
  const line = plain((saw.find(({ role }) => role === "system") || saw[0])?.content).trim().split("\n")[0];
  return line.length > 70 ? line.slice(0, 70) + "…" : line;
}

function threadTitle(thread, threads) {
  const name = threads?.get(thread).name;
  return `thread ${thread + 1}` + (name ? ": " + shown(name) : "");
}

function threadNodes(threads) {
  return el("div.lanes", {}, [...threads].map(([thread, { turns }]) =>
    el("span.lane", { style: { "--lane": Math.min(thread, 6) } }, threadTitle(thread, threads), el("small", {}, ` ${plural(turns.length, "turn")}, from ${turnTitle(turns[0])}`))));
}

"use strict";
// Messages, tool calls, results, replies, questions to second models.

/** The messages of one turn, in order. */
function turnWords(turn, needle = "", firstTurns = null) {
  return [
    ...assistantWords(turn.message, needle),
    turn.results.map((result) => resultNode(result, needle, firstTurns && firstTurns.get(plain(result.content)) < turn.index ? firstTurns.get(plain(result.content)) : null)),
    turn.replies.map((reply) => messageNode(reply, needle)),
    turn.judge_calls.map((call) => judgeNode(call, needle)),
    artefactNodes(turn.artefacts),
  ];
}

function assistantWords(message, needle) {
  return [
    message.reasoning ? details("reasoning", textBlock(message.reasoning, { spec: "div.text.reasoning", needle }), true) : null,
    textBlock(message.content, { needle }),
    (message.calls || []).map((call) => callNode(call, needle)),
  ];
}

function messageNode(message, needle = "") {
  if (message.role === "assistant") return el("div.message", {}, el("span.role", {}, "assistant"), assistantWords(message, needle));
  const spec = message.role === "tool" ? "div.text.mono" : "div.text";
  return el("div.message" + (message.role === "user" ? ".user" : ""), {}, el("span.role", {}, shown(message.role)), textBlock(message.content, { spec, needle }) || el("span.none", {}, "(empty)"));
}

function callNode(call, needle) {
  const failed = call.status && !["ok", "done"].includes(call.status);
  return el("div.call", {}, el("div.callhead", {}, el("b", {}, marked(shown(call.name), needle)), failed ? el("span.badge.tool-error", {}, shown(call.status)) : null), argumentNodes(call.arguments, needle));
}

/** Arguments by name, texts with line breaks; a value that is no object is shown as written. */
function argumentNodes(text, needle) {
  const given = objectOf(text);
  if (given === null) return textBlock(text, { spec: "div.text.mono", needle });
  return el("dl.arguments", {}, Object.entries(given).map(([name, value]) => [
    el("dt", {}, shown(name)),
    el("dd", {}, textBlock(typeof value === "string" ? value : JSON.stringify(value, null, 1), { spec: "div.text.mono", needle }) || el("span.none", {}, '""')),
  ]));
}

function objectOf(text) {
  if (typeof text !== "string") return null;
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** A result; with `first`, folded, since that turn has the same. */
function resultNode(result, needle, first = null) {
  const failed = result.error || result.timed_out || result.exit_code;
  return el("div.result" + (failed ? ".failed" : ""), {},
    el("div.callhead", {}, el("span.role", {}, "result"), shown(result.name),
      result.error ? el("span.badge.tool-error", {}, shown(result.error).slice(0, 120)) : null,
      result.timed_out ? el("span.badge.tool-error", {}, "timed out") : null,
      result.exit_code === null ? null : el("span" + (result.exit_code ? ".bad" : ".muted"), {}, "exit " + result.exit_code),
      result.duration_s ? el("span.muted", {}, seconds(result.duration_s)) : null),
    first === null ? textBlock(result.content, { spec: "div.text.mono", needle }) || el("span.none", {}, "(empty)")
      : details(`the same as in ${turnTitle(first)}`, () => textBlock(result.content, { spec: "div.text.mono", needle })));
}

function judgeNode(call, needle = "") {
  return el("div.judge", {},
    el("div.callhead", {}, el("span.role", {}, shown(call.role)), shown(call.hook), el("span.muted", {}, shown(call.model))),
    call.answer === null ? el("span.none", {}, "took no such question") : textBlock(call.answer, { needle }),
    details("what it was asked", () => call.messages.map((message) => messageNode(message, needle))));
}

/** Versions of files that were kept. */
function artefactNodes(artefacts) {
  if (!artefacts.length) return null;
  return details(`${plural(artefacts.length, "file")} kept`, () => artefacts.map((file) => {
    const head = el("div.callhead", {}, el("b", {}, shown(file.path)), el("span.muted", {}, `${num(file.bytes)} bytes, ${shown(file.note)}`));
    return el("div.result.artefact", {}, head, textBlock(file.text, { spec: "div.text.mono" }));
  }));
}

/** A part that opens; a function makes its content on opening. */
function details(title, content, open = false) {
  const node = el("details", { open }, el("summary", {}, title));
  if (typeof content !== "function") return add(node, [content]);
  node.addEventListener("toggle", () => node.open && add(node, [content()]), { once: true });
  return node;
}

/** Every text of a turn as one string, to be copied. */
function turnText(turn) {
  const { message } = turn;
  return [
    message.reasoning ? `[reasoning]\n${plain(message.reasoning)}` : "",
    plain(message.content),
    ...(message.calls || []).map((call) => `[call ${call.name}]\n${plain(call.arguments)}`),
    ...turn.results.map((result) => `[result ${result.name}]\n${plain(result.content)}`),
    ...turn.replies.map((reply) => `[${reply.role}]\n${plain(reply.content)}`),
  ].filter(Boolean).join("\n\n");
}

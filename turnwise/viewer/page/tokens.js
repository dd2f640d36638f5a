"use strict";
// Sampled tokens with advantage, training mask and probability.

const TOKENS_AT_ONCE = 1200;

function tokensNode(rollout, turn) {
  const { ledger, logprobs, token_texts: texts, token_ids: ids } = turn;
  const count = ids.length;
  const body = el("div.tokens" + (turn.trained ? "" : ".untrained"), { style: { "--heat": turn.trained ? heat(ledger.advantage) : "transparent" } });
  const more = button(".quiet.more", "", () => drawMore());
  let drawn = 0;
  const drawMore = () => {
    const end = Math.min(count, drawn + TOKENS_AT_ONCE);
    for (; drawn < end; drawn += 1) add(body, [tokenNode(turn, drawn)]);
    more.hidden = drawn >= count;
    more.textContent = `show ${num(Math.min(TOKENS_AT_ONCE, count - drawn))} more of ${num(count)} tokens`;
  };
  if (count) drawMore();
  tip(body, () => tokenWords(turn, Number(document.querySelector(".token:hover")?.dataset.at ?? -1)));
  return el("section", {}, el("h3", {}, "Tokens"),
    el("p.note", {}, `${plural(turn.span[1] - turn.span[0], "token")} sampled, ${turn.span[0]} to ${turn.span[1] - 1} of row ${turn.row}`, logprobs ? `; mean logprob ${num(mean(logprobs))}` : "; no logprobs", texts || !count ? "" : "; no tokenizer has their texts, so these are ids", count ? "" : "; they are not in this page"),
    ribbon(rollout, turn), keysNode([["plus", "sampled, advantage above 0"], ["minus", "below 0"], ["fill-quiet", "masked"], ["read-mark", "read"], ["own-mark.framed", "this turn"]]), count ? [el("div.keys", {}, el("span.key", {}, el("i.swatch", { style: { background: turn.trained ? heat(ledger.advantage) || "transparent" : "transparent" } }), turn.trained ? `trained with ${signed(ledger.advantage)}` : "masked"), logprobs ? el("span.key", {}, el("i.surprise"), "underlined: unlikely") : null), body, more] : null);
}

function tokenNode({ logprobs, token_texts: texts, token_ids: ids }, at) {
  const text = texts ? shown(texts[at]) : String(ids[at]);
  const surprise = logprobs ? Math.min(1, -logprobs[at] / 4) : 0;
  return el("span.token" + (texts ? "" : ".id"), { "data-at": at, style: surprise > 0.08 ? { "--surprise": surprise.toFixed(2) } : null }, text.replaceAll("\n", "⏎\n"));
}

function tokenWords({ logprobs, token_texts: texts, token_ids: ids, trained, ledger, span }, at) {
  if (at < 0) return [`${plural(ids.length, "token")}`];
  const logprob = logprobs ? [`logprob ${num(logprobs[at], 4)}, probability ${num(100 * Math.exp(logprobs[at]), 2)} %`] : [];
  return [`token ${span[0] + at}, id ${ids[at]}${texts ? ` ${JSON.stringify(shown(texts[at]))}` : ""}`, ...logprob, trained ? `trained, advantage ${signed(ledger.advantage, 4)}` : "masked"];
}

/** The row of a turn: sampled spans in their colours, other tokens in grey. */
function ribbon(rollout, turn) {
  const near = rollout.entry.blocks.map((name) => keptBlock(name)?.turns || []).find((turns) => turns.includes(turn)) || [turn];
  const same = near.filter((other) => other.row === turn.row);
  const end = most(same.map((other) => other.span[1]));
  if (!(end > 0)) return null;
  const node = svg("svg.ribbon", { viewBox: `0 0 ${end} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `Row ${turn.row}: ${num(end)} tokens, sampled ones in colour` });
  add(node, [tip(svg("rect.read", { x: 0, y: 0, width: end, height: 1 }), () => "read, not sampled: masked")]);
  for (const other of same) {
    const rect = svg("rect" + (other.index === turn.index ? ".own" : "") + (other.trained ? "" : ".untrained"), { x: other.span[0], y: 0, width: Math.max(other.span[1] - other.span[0], end / 400), height: 1 });
    rect.style.fill = other.trained ? heat(other.ledger.advantage) : "";
    rect.addEventListener("click", () => go(inGroup({ g: rollout.group.id, s: rollout.entry.sibling, t: other.index })));
    add(node, [tip(rect, () => [turnTitle(other.index), `tokens ${other.span[0]} to ${other.span[1] - 1}`, other.trained ? `advantage ${signed(other.ledger.advantage)}` : "masked"])]);
  }
  return node;
}

"use strict";
// One turn in full, beside its group: its credit ledger and all its data.

const drawer = { rollout: null, turn: null, focusBefore: null };

async function openDrawer(rollout, turn) {
  const node = document.getElementById("drawer");
  if (node.hidden) drawer.focusBefore = document.activeElement;
  if (drawer.rollout === rollout && drawer.turn === turn && !node.hidden) return;
  Object.assign(drawer, { rollout, turn });
  node.hidden = false;
  document.body.classList.add("drawn");
  try {
    const whole = await turnOf(rollout.entry, turn);
    if (drawer.rollout !== rollout || drawer.turn !== turn) return;
    replace(node, drawerHead(rollout, turn, whole), el("div.drawerbody", {}, ledgerNode(whole), peersNode(rollout, whole), otherEstimators(rollout, turn),
      whole.judge_calls.length ? el("section", {}, el("h3", {}, "Verdicts"), whole.judge_calls.map((call) => judgeNode(call))) : null, saidNode(whole), tokensNode(rollout, whole), factsNode(rollout, whole)));
    node.querySelector(".drawerbody").scrollTop = 0;
  } catch (error) {
    replace(node, drawerHead(rollout, turn, null), el("div.error", {}, shown(error.message)));
  }
}

function closeDrawer() {
  const node = document.getElementById("drawer");
  if (node.hidden) return;
  node.hidden = true;
  document.body.classList.remove("drawn");
  Object.assign(drawer, { rollout: null, turn: null });
  replace(node);
  if (drawer.focusBefore?.isConnected) drawer.focusBefore.focus({ preventScroll: true });
}

function drawerHead(rollout, turn, whole) {
  const { group, entry } = rollout;
  const to = (step) => (entry.turns.kind[turn + step] ? el("a.quiet", { href: turnHash(group.id, entry.sibling, turn + step), "aria-label": step > 0 ? "Next turn" : "Previous turn" }, step > 0 ? "↓" : "↑") : el("span.quiet.off", {}, step > 0 ? "↓" : "↑"));
  return el("div.drawerhead", {}, el("h2", {}, `sibling ${entry.sibling}, ${turnTitle(turn)}`), creditChip(rollout, turn), badgeList(rollout, turn), el("span.grow"), to(-1), to(1),
    copyButton("link", () => fullLink(turnHash(group.id, entry.sibling, turn)), "the link to this turn"),
    whole ? copyButton("text", () => turnText(whole), "the texts of this turn") : null, whole ? copyButton("JSON", () => JSON.stringify(whole, null, 2), "this turn as JSON") : null,
    el("a.quiet.close", { href: hashOf(inGroup({ g: group.id, s: entry.sibling })), "aria-label": "Close", title: "Close (Esc)" }, "✕"));
}

function otherEstimators({ group, entry }, turn) {
  if (!page.index.others.length || group.status === "failed") return null;
  const own = entry.turns.advantages[turn];
  return el("section", {}, el("h3", {}, "By each estimator"), el("table", {}, el("tr", {}, el("td", {}, estimatorNode(page.index.estimator)), el("td.n", {}, heatChip(own)), el("td", {}, el("span.badge", {}, "recorded"))),
    page.index.others.map((name, which) => {
      const value = entry.turns.others[which][turn];
      return el("tr", {}, el("td", {}, estimatorNode(name)), el("td.n", {}, heatChip(value, null, page.otherColours[which])), el("td.n", {}, value * own < -EPSILON ? el("span.badge.flip", {}, "other sign") : null));
    })));
}

function saidNode(turn) {
  return el("section.said", {}, el("h3", {}, turn.kind === "summary" ? "What it summed up" : "What it said and did"), turn.condensed || turn.saw ? sawNode(turn) : null, assistantWords(turn.message, page.needle), turn.results.map((result) => resultNode(result, page.needle)), turn.replies.map((reply) => messageNode(reply, page.needle)));
}

function factsNode({ entry }, turn) {
  const rows = [
    ["thread", turn.thread === null ? null : turn.thread + 1], ["ended by", turn.finish_reason], ["weights", turn.weight_version ?? "unknown"], ["row, span", `${turn.row}, ${turn.span[0]} to ${turn.span[1]}`],
    ["fork", turn.fork], ["state", turn.anchor], ["model", seconds(turn.model_s)], ["tools", turn.results.length ? seconds(turn.tools_s) : null],
    ["tokens", entry.exact ? "exact, from the sampler" : "made from text"],
    ...Object.entries(turn.sampling).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]),
    ...Object.entries(turn.noted).map(([name, value]) => [`noted: ${name}`, num(value)]),
    ...Object.entries(turn.raw).map(([name, value]) => [`raw: ${name}`, num(value)]),
  ].filter(([, value]) => value !== null && value !== undefined);
  return el("section", {}, el("h3", {}, "Sampling and time"), el("table.facts", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, shown(name)), el("td", {}, textBlock(String(value)))))));
}

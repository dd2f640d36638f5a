"use strict";
// A group: a column per sibling, a row per act, so that compared turns are side by side.

const NEAR = "1200px 0px";

const GROUP_KEYS = [
  ["plus", "advantage above the peers"], ["minus", "below"], ["dot.passed", "passed"], ["dot.failed", "not passed"], ["hatched", "ended before"],
  ["rule.user", "user"], ["rule", "other message"], ["rule.double", "second model"], ["swatch.framed", "selected"],
];

/** The siblings that the address chooses: none for all, one for its transcript; the selected one is among them. */
function chosenSiblings(group, asked) {
  const has = (sibling) => group.rollouts.some((entry) => entry.sibling === sibling);
  const only = [...new Set(listed(asked.only).map(Number))].filter(has).slice(0, 2);
  const to = Number(asked.s ?? only[0]);
  return only.length && has(to) && !only.includes(to) ? [...only.slice(0, -1), to] : only;
}

/** A group's status, and how many of its siblings were dropped. */
function statusNode({ status, reason, rollouts, failures }) {
  return [el("span.status." + status, { title: reason }, status),
    failures.length ? el("span.status.failed", { title: "These siblings have no credit, and the others fewer peers" }, `${failures.length} of ${failures.length + rollouts.length} dropped`) : null];
}

class GroupView {
  constructor(group, only = []) {
    this.group = group;
    this.only = only;
    this.siblings = (only.length ? only : group.rollouts.map((entry) => entry.sibling)).map((sibling) => findRollout(group.id, sibling));
    this.survey = only.length === 1 ? surveyOf(this.siblings[0].entry) : null;
    this.folded = new Set();
    this.rowCount = most(this.siblings.map(({ acts, actOf }) => Math.max(acts.length, actOf.length ? actOf.at(-1) + 1 : 0)).concat(0));
    this.longest = most(this.siblings.map(({ entry }) => entry.turns.kind.length).concat(0));
    this.selected = { column: 0, turn: 0 };
    this.observer = null;
    this.node = el("div.group" + (this.survey ? ".transcript" : ""), { style: { "--siblings": Math.max(1, this.siblings.length) } });
    this.matrix = el("div.matrix", { tabindex: "0", role: "group", "aria-label": "Siblings side by side, a row per turn" });
    this.above = el("div.above");
    this.rows = range(this.rowCount, (act) => el("div.mrow.pending", { "data-act": act }, el("div.gutter", {}, act + 1)));
    add(this.matrix, [this.head(), this.above, this.rows, this.outcomes()]);
    add(this.node, [this.title(), this.matrix]);
    this.observer = new IntersectionObserver((seen) => seen.forEach((each) => (each.isIntersecting ? this.fill(each.target) : this.empty(each.target))), { root: this.matrix, rootMargin: NEAR });
    this.rows.forEach((row) => this.observer.observe(row));
    this.opening();
  }

  title() {
    const { groups } = page.index;
    const at = groups.indexOf(this.group);
    const step = (to, words) => (groups[to] ? el("a.quiet", { href: hashOf({ g: groups[to].id }), title: words + " group" }, words === "next" ? "next →" : "← previous") : el("span.quiet.off", {}, words === "next" ? "next →" : "← previous"));
    return el("div.grouphead", {}, el("h1", {}, shown(this.group.item)), statusNode(this.group),
      this.group.reason ? el("span.muted", {}, shown(this.group.reason)) : null, el("span.muted", {}, `${plural(this.group.rollouts.length, "sibling")}, epoch ${this.group.epoch}, group ${num(at + 1)} of ${num(groups.length)}`),
      this.group.weights.length > 1 ? el("span.badge.masked", { title: "Its turns were sampled by several versions of the weights" }, "weights " + this.group.weights.map((each) => shown(each ?? "unknown")).join(", ")) : null,
      this.chooser(), typed("turn", "", (turn) => turn && this.show(this.selected.column, turn - 1), "number"), this.survey ? this.transcriptTools() : null, el("span.grow"), step(at - 1, "previous"), step(at + 1, "next"), copyButton("copy link", () => fullLink(hashOf({ g: this.group.id })), "the link to this group"));
  }

  /** Choose one sibling, for its transcript, or two. */
  chooser() {
    const all = this.group.rollouts.map((entry) => String(entry.sibling));
    const [left, right] = this.only.map(String);
    const to = (...only) => go({ g: this.group.id, only: [...new Set(only.filter(Boolean))].join(",") });
    const words = (sibling) => "sibling " + sibling;
    return el("span.two", {}, choice("sibling on the left", "all siblings", all, left, (value) => to(value, value && right), words),
      left && all.length > 1 ? [" beside ", choice("sibling on the right", "none", all.filter((each) => each !== left), right, (value) => to(left, value), words)] : null);
  }

  transcriptTools() {
    const all = this.siblings[0].actOf.map((_, turn) => turn);
    return [button(".quiet", "fold all", () => this.fold(all, this.folded.size < all.length), { title: "Fold or unfold every turn (F)" }),
      button(".quiet", "download JSON", () => this.download(), { title: "This rollout as a file" })];
  }

  /** Fold or unfold turns; a folded one shows its first words. */
  fold(turns, folded) {
    for (const turn of turns) {
      this.folded[folded ? "add" : "delete"](turn);
      this.node.querySelector(`.turn[data-turn="${turn}"]`)?.classList.toggle("folded", folded);
    }
  }

  async download() {
    const { group, siblings: [{ entry }] } = this;
    const parts = await Promise.all(entry.blocks.map(block));
    const { blocks: _blocks, starts: _starts, turns: _columns, ...facts } = entry;
    save(JSON.stringify({ group: group.id, item: group.item, epoch: group.epoch, ...facts, ...parts[0], turns: parts.flatMap(({ turns }) => turns) }, null, 1), `${group.item}-${entry.sibling}.json`.replaceAll(/[^\w.-]/g, "_"));
  }

  head() {
    return el("div.mrow.mhead", {}, el("div.gutter", {}, "turn"), this.siblings.map((rollout, column) => {
      const { entry } = rollout;
      const passed = hasPassed(entry);
      return el("div.sibling", { "data-sibling": entry.sibling }, el("div.sibline", {},
        el("a.name", { href: hashOf({ g: this.group.id, only: entry.sibling }), title: "Read this sibling alone" }, "sibling " + entry.sibling), passed === null ? null : el("i.dot." + (passed ? "passed" : "failed"), { title: passed ? "passed" : "not passed" }),
        el("span", { title: "score " + exact(entry.score) }, "score ", el("b", {}, num(entry.score))), entry.outcome === null ? null : el("span.muted", {}, "outcome " + num(entry.outcome)), el("span.grow"),
        el("span.muted", { title: shown(ending(entry)) }, shown(ending(entry)))),
      entry.trunk === null ? null : el("a", { href: turnHash(this.group.id, entry.trunk, entry.replayed), title: "Its turns before are those of its trunk, played again" }, branchWords(entry)),
      this.group.status === "failed" ? null : strip(entry, { height: 10, longest: Math.max(1, this.longest), jump: (turn) => this.show(column, turn) }));
    }));
  }

  /** The prompts, and the errors of dropped siblings. */
  async opening() {
    try {
      const whole = await block(this.group.block);
      const first = this.siblings.length ? await block(this.siblings[0].entry.blocks[0]) : null;
      replace(this.above,
        keysNode(GROUP_KEYS),
        whole.error ? el("div.error", {}, el("b", {}, "Siblings could not be compared. "), shown(whole.error)) : null,
        whole.failures.map((failure) => failureNode(failure, this.group.failures.find((each) => each.sibling === failure.sibling))),
        this.survey ? threadNodes((await this.survey).threads) : null,
        el("div.openings", {}, first && first.prompt.length ? details(`prompt (${plural(first.prompt.length, "message")})`, first.prompt.map((message) => messageNode(message)), true) : null,
          whole.item === null ? null : details("item", () => [copyButton("copy", () => JSON.stringify(whole.item, null, 2), "the item"), textBlock(JSON.stringify(whole.item, null, 2), { spec: "div.text.mono" })]),
          whole.tools.length ? details(plural(whole.tools.length, "tool"), () => textBlock(JSON.stringify(whole.tools, null, 2), { spec: "div.text.mono" })) : null,
          whole.judge_calls.length ? details(plural(whole.judge_calls.length, "question") + " about the group", () => whole.judge_calls.map((call) => judgeNode(call)), true) : null));
    } catch (error) {
      replace(this.above, el("div.error", {}, shown(error.message)));
    }
  }

  fill(row) {
    if (!row.classList.contains("pending")) return;
    row.classList.remove("pending");
    const act = Number(row.dataset.act);
    row.style.minHeight = "";
    const cells = this.siblings.map((rollout, column) => this.cell(rollout, column, act));
    replace(row, el("div.gutter", {}, act + 1), cells);
    this.mark();
  }

  /** Remove a row that is far from the viewport; keep its height. */
  empty(row) {
    if (row.classList.contains("pending")) return;
    row.style.minHeight = row.offsetHeight + "px";
    row.classList.add("pending");
    replace(row, el("div.gutter", {}, Number(row.dataset.act) + 1));
  }

  cell(rollout, column, act) {
    const turns = rollout.actOf.flatMap((each, turn) => (each === act ? [turn] : []));
    if (!turns.length) return el("div.cell.none", {}, act === rollout.actOf.at(-1) + 1 ? el("span.ended", {}, shown(ending(rollout.entry))) : null);
    return el("div.cell", {}, turns.map((turn) => this.turn(rollout, column, turn)));
  }

  turn(rollout, column, turn) {
    const { entry } = rollout;
    const words = el("div.words", {}, el("span.wait", {}, "…"));
    const parts = el("span.parts");
    const gist = el("span.gist");
    const node = el("article.turn" + (this.folded.has(turn) ? ".folded" : ""), { "data-turn": turn, "data-column": column, "aria-label": `sibling ${entry.sibling}, ${turnTitle(turn)}` },
      el("a.turnhead", { href: turnHash(this.group.id, entry.sibling, turn), title: "How this credit came about" }, !this.survey && turn === rollout.acts[rollout.actOf[turn]] && turn === rollout.actOf[turn] ? null : el("span.muted", {}, turnTitle(turn)),
        creditChip(rollout, turn),
        el("span.reward", { title: "reward " + exact(entry.turns.rewards[turn]) }, entry.turns.rewards[turn] === null ? el("span.muted", {}, "not scored") : ["reward ", el("b", {}, signed(entry.turns.rewards[turn]))]),
        parts, badgeList(rollout, turn), el("span.muted.right", {}, num(entry.turns.tokens[turn]) + " tok")),
      this.survey ? gist : null, words);
    if (this.survey) node.prepend(button(".quiet.foldmark", "▾", () => this.fold([turn], !this.folded.has(turn)), { "aria-label": `Fold ${turnTitle(turn)}` }));
    Promise.all([turnOf(entry, turn), this.survey]).then(([whole, survey]) => {
      if (whole.thread !== null && survey) node.classList.add("lane");
      node.style.setProperty("--lane", Math.min(whole.thread ?? 0, 6));
      gist.textContent = survey && shown(turnText(whole).replace(/\s+/g, " ").slice(0, 240));
      replace(parts, whole.thread === null ? null : el("span.part.thread", {}, threadTitle(whole.thread, survey?.threads)), Object.entries(whole.parts).filter(([, value]) => value).map(([name, value]) => el("span.part", {}, `${shown(name)} ${signed(value)}`)));
      replace(words, whole.condensed || whole.saw ? sawNode(whole) : null, turnWords(whole, page.needle, survey?.firstTurns));
      if (!words.firstChild) replace(words, el("span.none", {}, "(no text)"));
    }).catch((error) => replace(words, el("div.error", {}, shown(error.message))));
    return node;
  }

  outcomes() {
    return el("div.mrow.outcomes", {}, el("div.gutter", {}, "end"), this.siblings.map((rollout) => {
      const { entry } = rollout;
      const more = el("div");
      if (entry.blocks.length) block(entry.blocks[0]).then((whole) => replace(more,
        pairs(whole.outcome_parts, "outcome of"), pairs(whole.metrics, "noted"), whole.agent ? agentNode(whole.agent) : null, whole.judge_calls.map((call) => judgeNode(call)), artefactNodes(whole.artefacts))).catch(() => replace(more, "…"));
      return el("div.cell", {}, el("div.turnhead", {}, el("span", {}, "outcome ", el("b", {}, signed(entry.outcome))), el("span", {}, "score ", el("b", {}, num(entry.score))), el("span.muted", {}, seconds(entry.wall_s)), entry.rows > 1 ? el("span.badge.fork", {}, entry.rows + " rows") : null,
        entry.exact ? null : el("span.badge.masked", { title: "Token ids were made from text, not given by the sampler" }, "inexact tokens")),
      el("div.words", {}, el("div", {}, shown(ending(entry))), more));
    }));
  }

  /** Select a turn and scroll to its row. */
  async show(column, turn) {
    this.selected = { column, turn };
    const row = this.rows[this.siblings[column]?.actOf[turn]];
    if (!row) return;
    const into = () => row.scrollIntoView({ block: "start", inline: "nearest" });
    this.fill(row);
    into();
    this.mark();
    await turnOf(this.siblings[column].entry, turn).catch(() => null);
    await pause();
    // Rows above were filled meanwhile, and have other heights.
    const top = row.getBoundingClientRect().top - this.matrix.getBoundingClientRect().top;
    if (top < 0 || top > this.matrix.clientHeight * 0.6) into();
    this.node.querySelector(".turn.selected")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  mark() {
    for (const node of this.node.querySelectorAll(".turn.selected")) node.classList.remove("selected");
    const { column, turn } = this.selected;
    this.node.querySelector(`.turn[data-column="${column}"][data-turn="${turn}"]`)?.classList.add("selected");
  }

  /** The neighbour of the selected turn: other siblings at the same act, other acts of the sibling. */
  moved(columns, acts) {
    const { column, turn } = this.selected;
    const act = this.siblings[column].actOf[turn] + acts;
    const to = Math.max(0, Math.min(this.siblings.length - 1, column + columns));
    const turns = this.siblings[to].acts;
    if (!turns.length) return null;
    return { column: to, turn: turns[Math.max(0, Math.min(turns.length - 1, act))] };
  }

  columnOf(sibling) {
    return this.siblings.findIndex(({ entry }) => entry.sibling === sibling);
  }

  close() {
    this.observer.disconnect();
  }
}

function failureNode(failure, entry) {
  return el("div.failure", {}, el("b", {}, `sibling ${failure.sibling} was dropped`), entry ? ` after ${plural(entry.turns, "turn")}` : "", ": ", shown(plain(failure.error)),
    failure.traceback ? details("traceback", () => [copyButton("copy", () => plain(failure.traceback), "the traceback"), textBlock(failure.traceback, { spec: "div.text.mono" })]) : null,
    failure.judge_calls.length ? details(plural(failure.judge_calls.length, "question"), () => failure.judge_calls.map((call) => judgeNode(call))) : null);
}

/** The process of a recorded agent. */
function agentNode(agent) {
  return el("div.judge.agent", {}, el("div.callhead", {}, el("span.role", {}, "agent"), agent.exit_code === null ? null : `exit code ${agent.exit_code}`, el("span.muted", {}, seconds(agent.wall_s))),
    pairs(agent.counts, "requests:"), agent.error ? details("error", textBlock(agent.error, { spec: "div.text.mono" }), true) : null,
    agent.output ? details("output", () => textBlock(agent.output, { spec: "div.text.mono" })) : null);
}

/** The condensed context that the model saw. */
function sawNode(turn) {
  const head = turn.condensed && `context condensed${turn.condensed.cause ? " by " + shown(turn.condensed.cause) : ""}${turn.condensed.tokens_before === undefined ? "" : `: ${num(turn.condensed.tokens_before)} → ${num(turn.condensed.tokens_after)} tokens`}`;
  return el("div.saw", {}, head && el("span.badge", {}, head), turn.saw ? details("what the model saw", () => turn.saw.map((part) => (part.message ? messageNode(part.message) : el("div.muted", {}, `messages ${part.start + 1} to ${part.end} of the conversation`)))) : null);
}

function pairs(values, name) {
  const rows = Object.entries(values);
  return rows.length ? el("div.pairs", {}, rows.map(([key, value]) => el("span.part", { title: `${name} ${key}: ${exact(value)}` }, `${shown(key)} ${num(value)}`))) : null;
}

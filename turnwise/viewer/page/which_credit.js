"use strict";
// The credit report: signal to noise of every estimator on these rollouts.

function creditView() {
  const { rows, groups, sentences } = page.index.credit;
  const titles = ["estimator", "γ", "baseline", "snr", "90 %", "groups a step", "bias"];
  const best = [...rows].sort((a, b) => b.snr - a.snr);
  const tier = rows[0].tier === "proxy" ? "a proxy made of the record's tokens" : "the model's gradients";
  return el("div.page", {},
    el("section.head", {}, el("h1", {}, "Which credit"), el("p.lead", {}, `${plural(groups, "group")}; ${tier}. The signal of each estimator's gradient over its noise, per group (snr), and the groups whose mean has as much signal as noise.`)),
    el("section", {}, sentences.map((sentence) => el("p.notice", {}, shown(sentence)))),
    el("div.scrolls", {}, el("table.changes", {},
      el("tr", {}, titles.map((title) => el(["estimator", "baseline"].includes(title) ? "th" : "th.n", {}, title))),
      best.map((row) => el("tr", {}, el("td", {}, shown(row.estimator)), el("td.n", {}, row.gamma === null ? "" : num(row.gamma)), el("td", {}, shown(row.baseline ?? "")),
        el("td.n", {}, num(row.snr)), el("td.n", {}, `${num(row.snr_low)} … ${num(row.snr_high)}`), el("td.n", {}, num(row.groups_per_step)), el("td.n", {}, num(row.bias)))))));
}

"use strict";
// The credit report: each estimator's gradient beside that of γ = 1, on these rollouts.

function creditView() {
  const { table, groups, gradients, sentences, left_out } = page.index.credit;
  return el("div.page", {},
    el("section.head", {}, el("h1", {}, "Which credit"), el("p.lead", {}, `${plural(groups, "group")}; ${gradients}. What is not certain is not stated.`)),
    el("section", {}, sentences.map((sentence) => el("p.notice", {}, shown(sentence)))),
    el("div.scrolls", {}, el("table.changes", {},
      el("tr", {}, ["beside γ = 1", "noise", "direction", "groups needed"].map((title) => el("th", {}, title))),
      table.map((texts) => el("tr", {}, texts.map((text) => el("td", {}, shown(text))))))),
    el("section", {}, Object.entries(left_out).map(([name, reason]) => el("p.note", {}, shown(`left out: ${name}: ${reason}`)))));
}

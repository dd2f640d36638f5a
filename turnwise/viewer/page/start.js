"use strict";
// Shows the view of the address.

const views = { current: null };

function bar() {
  const asked = route();
  const tabs = Object.entries(VIEWS).filter(([name]) => hasView(name)).map(([name, label]) =>
    el("a.tab", { href: hashOf({ v: name }), "aria-current": asked.v === name || (asked.v === "group" && name === "rollouts") ? "page" : null }, label));
  const search = el("input", { id: "search", type: "search", placeholder: "search all texts  /", value: page.needle, "aria-label": "Search all texts", onkeydown: (event) => {
    if (event.key === "Enter") go({ ...(asked.v === "turns" ? route() : { v: "turns" }), text: search.value });
  } });
  replace(document.getElementById("bar"), el("a.brand", { href: "#" }, "Turnwise"), el("span.title", {}, shown(page.index.title)), el("nav", { "aria-label": "Views" }, tabs), el("span.grow"), el("span.live", { id: "live", role: "status" }), search,
    button(".quiet", "◐", toggleTheme, { title: "Light or dark", "aria-label": "Light or dark" }), button(".quiet", "?", toggleHelp, { title: "Keys", "aria-label": "Keys" }));
  drawLive();
}

function draw() {
  hideTip();
  const asked = route();
  page.needle = (asked.text && asked.v === "turns" ? asked.text : page.needle || "").toLowerCase();
  bar();
  const host = document.getElementById("view");
  if (asked.v === "group") return drawGroup(asked, host);
  closeDrawer();
  views.current?.close?.();
  const made = { overview: overviewView, rollouts: rolloutsView, turns: turnsView, estimators: estimatorsView, credit: () => ({ node: creditView() }) }[asked.v]();
  views.current = made;
  replace(host, made.node);
  document.title = `${VIEWS[asked.v]} · ${shown(page.index.title)}`;
}

function drawGroup(asked, host) {
  const group = page.groupById.get(asked.g);
  if (!group) {
    closeDrawer();
    views.current = null;
    replace(host, el("p.notice", {}, `No group ${shown(asked.g)} is in this page.`));
    return;
  }
  const only = chosenSiblings(group, asked);
  if (views.current?.group !== group || String(views.current.only) !== String(only)) {
    views.current?.close?.();
    views.current = new GroupView(group, only);
    replace(host, views.current.node);
  }
  const view = views.current;
  const column = view.columnOf(Number(asked.s ?? -1));
  const turn = Number(asked.t);
  document.title = `${shown(group.item)} · ${shown(page.index.title)}`;
  if (column >= 0 && asked.t !== undefined && view.siblings[column].entry.turns.kind[turn]) {
    openDrawer(view.siblings[column], turn);
    view.show(column, turn);
  } else {
    closeDrawer();
    if (column >= 0) view.show(column, 0);
  }
}

async function start() {
  try {
    document.documentElement.style.colorScheme = keptTheme();
    takeIndex(await readIndex());
    addEventListener("hashchange", draw);
    addEventListener("keydown", key);
    draw();
    performance.mark("drawn");
    if (page.index.live) poll();
  } catch (error) {
    replace(document.getElementById("view"), el("p.notice", {}, "This page cannot be shown: " + error.message));
    throw error;
  }
}

start();

"use strict";
// A growing record: the page polls the index and appends new groups.

const POLL_MS = 2000;

const live = { lost: 0, added: 0 };

async function poll() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 5 * POLL_MS : POLL_MS));
    try {
      const index = JSON.parse(await inflated(await served("index?after=" + page.index.groups.length)));
      live.lost = 0;
      if (index.generation === page.index.generation) append(index);
      else await begin();
      if (!index.live) return drawLive();
    } catch {
      // The server may have ended; the page stays.
      live.lost += 1;
    }
    drawLive();
  }
}

/** Start again after the record was replaced. */
async function begin() {
  forgetBlocks();
  takeIndex(await readIndex());
  live.added = 0;
  closeDrawer();
  views.current?.close?.();
  views.name = "";
  draw();
}

/** Append groups; known ones stay the same objects, so that an open one stays open. */
function append(index) {
  const added = index.groups.filter((group) => !page.groupById.has(group.id));
  const known = page.index.groups;
  if (!added.length) {
    page.index.live = index.live;
    return;
  }
  const kept = page.rollouts;
  const { passing, fullColour } = page;
  takeIndex({ ...index, groups: [...known, ...added] });
  const old = new Map(kept.map((rollout) => [rollout.entry, rollout]));
  page.rollouts = page.rollouts.map((rollout) => old.get(rollout.entry) || rollout);
  page.rolloutByEntry = new Map(page.rollouts.map((rollout) => [rollout.entry, rollout]));
  // Keep colours and the passing score, if there were any.
  if (kept.length) Object.assign(page, { passing, fullColour });
  live.added += added.length;
  if (views.name === "rollouts" || views.name === "turns") views.current.again();
}

function liveNode() {
  return el("span.live", { id: "live", role: "status" }, liveWords());
}

function liveWords() {
  if (!page.index.live) return null;
  if (live.lost > 1) return "the server is gone";
  const stale = views.name === "overview" && live.added;
  return [el("i.pulse"), plural(page.index.groups.length, "group") + " so far", stale ? button(".quiet", "show", () => { live.added = 0; draw(); }) : null];
}

function drawLive() {
  const node = document.getElementById("live");
  if (node) replace(node, liveWords());
}

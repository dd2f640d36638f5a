"use strict";
// A growing record: the page polls the index and appends new groups.

const POLL_MS = 2000;

const live = { lost: 0 };

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
  Object.assign(blocks, { kept: new Map(), chars: 0 });
  takeIndex(await readIndex());
  closeDrawer();
  draw();
}

/** Append groups; known ones stay the same objects, so that an open one stays open. */
function append(index) {
  const added = index.groups.filter((group) => !page.groupById.has(group.id));
  const { groups: known, cut } = page.index;
  page.index.live = index.live;
  if (!added.length && String(index.cut) === String(cut)) return;
  const { rollouts, passing, fullColour } = page;
  takeIndex({ ...index, groups: [...known, ...added] });
  // Keep colours and the passing score, if there were any.
  if (rollouts.length) Object.assign(page, { passing, fullColour });
  views.current?.again?.();
}

function drawLive() {
  const words = live.lost > 1 ? "the server is gone" : [el("i.pulse"), plural(page.index.groups.length, "group") + " so far"];
  replace(document.getElementById("live"), page.index.live ? words : null);
}

"use strict";

const LIVE = document.getElementById("block-index") === null;

async function parsed() {
  if (document.readyState === "loading") {
    await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));
  }
}

async function block(name) {
  if (LIVE) {
    const response = await fetch(name === "index" ? "index" : `block/${name}`);
    return response.json();
  }
  if (document.getElementById(`block-${name}`) === null) await parsed();
  const text = document.getElementById(`block-${name}`).textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function show() {
  const shown = document.createElement("pre");
  const index = await block("index");
  shown.textContent = JSON.stringify(index, null, 1);
  document.getElementById("app").append(shown);
}

show();

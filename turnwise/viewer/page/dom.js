"use strict";
// Makes elements of values. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("p.note", {title: "…"}, "text", child, null, [children])`; `on…` are listeners, `style` a mapping. */
function el(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  return filled(document.createElement(tag || "div"), classes, props, children);
}

/** An SVG element; see `el`. */
function svg(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  return filled(document.createElementNS(SVG, tag), classes, props, children);
}

function filled(node, classes, props, children) {
  if (classes.length) node.classList.add(...classes);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

/** Append children: elements, text, numbers, lists of these; skip empty ones. */
function add(node, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** The own property of a mapping: names come from users and may be `constructor`. */
function own(mapping, name) {
  return Object.hasOwn(mapping, name) ? mapping[name] : undefined;
}

function replace(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

/** A button that looks like text or like a chip. */
function button(spec, label, onclick, props) {
  return el("button" + spec, { type: "button", onclick, ...props }, label);
}

function link(hash, ...children) {
  return el("a", { href: hash }, ...children);
}

/** A button that copies the text that `make` returns. */
function copyButton(label, text, what) {
  return button(".quiet", label, async ({ currentTarget: node }) => {
    const isCopied = await navigator.clipboard?.writeText(await text()).then(() => true, () => false);
    node.textContent = isCopied ? "copied" : "not permitted";
    setTimeout(() => (node.textContent = label), 1200);
  }, { "aria-label": "Copy " + what, title: "Copy " + what });
}

function save(text, name) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

/** A select; `all` are the words of the empty value, `null` for none. */
function choice(name, all, values, chosen, changed, words = shown) {
  const options = [...(all === null ? [] : [""]), ...values].map((value) => el("option", { value, selected: value === (chosen || "") }, value ? words(value).slice(0, 80) : all));
  return el("select", { "aria-label": name, onchange: (event) => changed(event.target.value) }, options);
}

/** A tooltip beside the pointer. */
function tip(node, words) {
  const show = (event) => {
    const box = document.getElementById("tip");
    replace(box, ...[words()].flat().map((line) => el("div", {}, line)));
    box.hidden = false;
    const { clientX: x, clientY: y } = event;
    const width = box.offsetWidth;
    const height = box.offsetHeight;
    box.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 8)) + "px";
    box.style.top = (y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18) + "px";
  };
  node.addEventListener("pointermove", show);
  node.addEventListener("pointerleave", hideTip);
  return node;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

/** Let the browser paint and handle input. */
function pause() {
  return new Promise((go) => setTimeout(go));
}

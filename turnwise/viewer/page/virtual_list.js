"use strict";
// A long list of rows of equal height; only visible ones are in the document.

const ROW_PX = 34;
const BEYOND = 12;

class VirtualList {
  /** `cells(item)` makes a row's children, `href(item)` its link. */
  constructor({ label, cells, href, spec = "" }) {
    this.cells = cells;
    this.href = href;
    this.items = [];
    this.selected = -1;
    this.spacer = el("div.spacer", { role: "presentation" });
    this.node = el("div.list" + spec, { role: "list", "aria-label": label, tabindex: "-1" }, this.spacer);
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.node);
    this.rows = new Map();
  }

  /** Show items; `keep` keeps the scroll position. */
  show(items, keep = false) {
    this.items = items;
    this.spacer.style.height = items.length * ROW_PX + "px";
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    if (!keep) {
      this.node.scrollTop = 0;
      this.selected = -1;
    }
    this.draw();
  }

  /** Append items. */
  grow() {
    this.spacer.style.height = this.items.length * ROW_PX + "px";
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW_PX) - BEYOND);
    const end = Math.min(this.items.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / ROW_PX) + BEYOND);
    for (const [at, row] of this.rows) {
      if (at < first || at >= end) {
        row.remove();
        this.rows.delete(at);
      }
    }
    for (let at = first; at < end; at += 1) {
      if (!this.rows.has(at)) this.rows.set(at, this.row(at));
    }
  }

  row(at) {
    const item = this.items[at];
    const row = el("a.row", {
      href: this.href(item),
      role: "listitem",
      "aria-setsize": this.items.length,
      "aria-posinset": at + 1,
      style: { top: at * ROW_PX + "px" },
      onfocus: () => this.mark(at),
    }, this.cells(item));
    row.classList.toggle("selected", at === this.selected);
    this.spacer.append(row);
    return row;
  }

  mark(at) {
    this.rows.get(this.selected)?.classList.remove("selected");
    this.selected = at;
    this.rows.get(at)?.classList.add("selected");
  }

  /** Move the selection by `step` rows, and scroll to it. */
  move(step) {
    if (!this.items.length) return;
    const at = Math.max(0, Math.min(this.items.length - 1, this.selected + step));
    const top = at * ROW_PX;
    const view = this.node;
    if (top < view.scrollTop + ROW_PX) view.scrollTop = top - ROW_PX;
    else if (top + 2 * ROW_PX > view.scrollTop + view.clientHeight) view.scrollTop = top + 2 * ROW_PX - view.clientHeight;
    this.draw();
    this.mark(at);
    this.rows.get(at).focus({ preventScroll: true });
  }
}

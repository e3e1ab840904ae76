// The timeline in the page: one focusable canvas, a legend, a tooltip, and a line that is read aloud.

import { Surface, swatch } from "./canvas.js";
import { element, frameOf, markDrawn } from "./dom.js";
import { COLUMNS, END, ROW, START, countOf, readFrame, spanAt } from "./frame.js";
import { listen } from "./gestures.js";
import { layOut, Scale } from "./layout.js";
import { paintTimeline, titleText } from "./paint.js";
import { onThemeChange, themeOf } from "./theme.js";

const HELP = "Click, then scroll or press + and − to zoom, drag or ← → to pan, 0 to fit. Enter steps through spans with Tab and ↑ ↓, Esc leaves.";

// A span stays chosen when the picture is drawn anew: by its row and the middle of its time.
function placeInTime(blocks, { block, index }) {
  const { spans } = blocks[block];
  const at = index * COLUMNS;
  return { block, row: spans[at + ROW], time: (spans[at + START] + spans[at + END]) / 2 };
}

function atPlace(blocks, { block, row, time: middle }) {
  const index = row < blocks[block]?.rows.length ? spanAt(blocks[block], row, middle) : -1;
  return index < 0 ? null : { block, index };
}

class TimelinePicture {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "timeline"));
    this.legend = element("div", "mp-legend", this.bar);
    this.buttons = element("div", "mp-buttons", this.bar);
    this.canvas.setAttribute("role", "application");
    element("div", "mp-help", this.root, HELP);
    this.window = null; // null: all of it
    this.hovered = this.selected = null; // {block, index}
    this.surface = new Surface(this.canvas, (...args) => this.paint(...args), () => this.layout.height);
    this.stops = [onThemeChange(() => this.update()), listen(this)];
    model.on("change:_header", () => this.update());
    this.update();
  }

  update() {
    const header = this.model.get("_header");
    const before = [this.hovered, this.selected].map((target) => target && placeInTime(this.blocks, target));
    this.kinds = header.kinds ?? [];
    this.unit = header.unit;
    this.blocks = readFrame(header, this.model.get("_frame"));
    this.layout = layOut(this.blocks);
    this.end = Math.max(...this.blocks.map((b) => b.makespan), header.horizon ?? 0) || 1;
    [this.hovered, this.selected] = before.map((place) => place && atPlace(this.blocks, place));
    if (!this.hovered && !this.selected) this.tip.hidden = true;
    this.drawLegend();
    const text = this.blocks.map((b) => `${b.source}: ${titleText(b, this.unit)}`).join("; ");
    this.canvas.setAttribute("aria-label", `Timeline of ${this.blocks[0]?.ranks ?? 0} ranks. ${text}. ${HELP}`);
    this.surface.invalidate();
  }

  drawLegend() {
    const remarks = this.model.get("_header").remarks ?? [];
    const key = JSON.stringify([this.kinds, remarks]) + themeOf(this.root).dark;
    if (key === this.legendKey) return;
    this.legendKey = key;
    this.legend.replaceChildren();
    for (const kind of this.kinds) {
      const item = element("span", "mp-key", this.legend);
      item.append(swatch(kind.fill, kind.hatch, kind.ink), kind.label);
    }
    for (const remark of remarks) element("span", "mp-remark", this.legend, remark);
  }

  // Everything that painting and hit-testing need to know about the current size, window and theme.
  picture(width, ratio = window.devicePixelRatio || 1) {
    const [low, high] = this.window ?? [0, this.end];
    const { blocks, layout, kinds, unit, hovered, selected } = this;
    return { blocks, layout, kinds, unit, hovered, selected, ratio, scale: new Scale(low, high, width), theme: themeOf(this.root) };
  }

  paint(ctx, width, height, ratio) {
    paintTimeline(ctx, this.picture(width, ratio));
    markDrawn(this.root, this.model);
    this.root.dataset.spans = String(this.blocks.reduce((sum, b) => sum + countOf(b), 0));
  }

  dispose() {
    this.stops.forEach((stop) => stop());
    this.surface.dispose();
  }
}

function render({ model, el }) {
  const picture = new TimelinePicture(model, el);
  return () => picture.dispose();
}

export default { render };

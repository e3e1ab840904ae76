// Curves in the page: axes, lines with their own dash, a cursor that reads all of them at one x.

import { Surface } from "./canvas.js";
import { CurveAxes, paintCurves } from "./curves-paint.js";
import { fillTip, frameOf, markDrawn, placeTip } from "./dom.js";
import { quantity } from "./format.js";
import { floats } from "./frame.js";
import { onThemeChange, themeOf } from "./theme.js";

export function readCurves(header, view) {
  const all = floats(view);
  let at = 0;
  const take = (n) => all.subarray(at, (at += n));
  return (header.series ?? []).map((s) => ({ ...s, x: take(s.count), y: take(s.count) }));
}

// The index of the x nearest to `value`; -1 without points.
export function nearest(xs, value) {
  let best = -1;
  for (let i = 0; i < xs.length; i++) if (best < 0 || Math.abs(xs[i] - value) < Math.abs(xs[best] - value)) best = i;
  return best;
}

class CurvesPicture {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "curves"));
    this.canvas.setAttribute("role", "application");
    this.cursor = null;
    this.surface = new Surface(this.canvas, (ctx, w, h) => this.paint(ctx, w, h), () => this.header.height ?? 260);
    this.stops = [onThemeChange(() => this.update())];
    this.canvas.addEventListener("pointermove", (e) => this.look(this.axes?.xAt(e.offsetX) ?? null));
    this.canvas.addEventListener("pointerleave", () => this.look(null));
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    model.on("change:_header", () => this.update());
    this.update();
  }

  update() {
    this.header = this.model.get("_header");
    this.series = readCurves(this.header, this.model.get("_frame"));
    const { title, x, y, yUnit } = this.header;
    const last = this.series.filter((s) => s.count).map((s) => `${s.label} ${quantity(s.y[s.count - 1], yUnit)}`);
    this.canvas.setAttribute("aria-label", `${title || y} against ${x}. ${last.join("; ") || "nothing yet"}. Left and right arrow read single values.`);
    this.surface.invalidate();
  }

  paint(ctx, width, height) {
    this.axes = new CurveAxes(this.header, this.series, width, height);
    paintCurves(ctx, { ...this, theme: themeOf(this.root) });
    markDrawn(this.root, this.model);
  }

  look(value) {
    const longest = this.series.reduce((a, b) => (b.count > (a?.count ?? 0) ? b : a), null);
    const at = value === null || !longest ? -1 : nearest(longest.x, value);
    this.cursor = at < 0 ? null : { index: at, x: longest.x[at] };
    const lines = this.cursor ? this.describe(this.cursor.x) : [];
    fillTip(this.tip, lines);
    if (this.cursor) placeTip(this.tip, this.axes.x(this.cursor.x), 28, this.surface.width);
    this.surface.invalidate();
    return lines;
  }

  describe(x) {
    const { xUnit, yUnit } = this.header;
    const values = this.series.filter((s) => s.count).map((s) => `${s.label}: ${quantity(s.y[nearest(s.x, x)], yUnit)}`);
    return [`${this.header.x} ${quantity(x, xUnit)}`, ...values];
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const longest = this.series.reduce((a, b) => (b.count > (a?.count ?? 0) ? b : a), null);
    if (event.key === "Escape") this.look(null);
    else if (by && longest) {
      const index = Math.min(longest.count - 1, Math.max(0, (this.cursor?.index ?? longest.count - 1 - by) + by));
      this.spoken.textContent = this.look(longest.x[index]).join(". ");
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  dispose() {
    this.stops.forEach((stop) => stop());
    this.surface.dispose();
  }
}

function render({ model, el }) {
  const picture = new CurvesPicture(model, el);
  return () => picture.dispose();
}

export default { render };

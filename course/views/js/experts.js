// Experts in the page: heat map of tokens, dropped share below it, then bars per rank and the traffic matrix.

import { Surface } from "./canvas.js";
import { fillTip, frameOf, markDrawn, placeTip } from "./dom.js";
import { bytes, percent, three } from "./format.js";
import { floats } from "./frame.js";
import { paintBars, paintDrops, paintHeat, paintMatrix } from "./experts-paint.js";
import { onThemeChange, themeOf } from "./theme.js";

export function readExperts(header, view) {
  const { experts = 0, ranks = 0, columns = 0 } = header;
  const all = floats(view);
  let at = 0;
  const take = (n) => all.subarray(at, (at += n));
  return { experts, ranks, columns, source: header.source, steps: take(columns), load: take(columns * experts),
    dropped: take(columns), rankLoad: take(ranks), traffic: take(ranks * ranks) };
}

const ABREAST = 700; // pixels: with fewer the bars and the matrix stand one below the other, or their titles would meet

// Where the four pictures stand for a given width.
export function expertsLayout({ experts, ranks }, width) {
  const cell = Math.max(3, Math.min(20, Math.floor(190 / Math.max(1, experts))));
  const heat = { x: 62, y: 24, w: width - 62 - 78, h: cell * experts };
  const drops = { x: 62, y: heat.y + heat.h + 32, w: heat.w, h: 44 };
  const row = drops.y + drops.h + 52;
  const h = Math.max(84, Math.min(200, ranks * 22));
  const wide = width >= ABREAST;
  const bars = { x: 62, y: row, w: (wide ? width * 0.46 : width - 16) - 62, h };
  const [x, y, most] = wide ? [width * 0.56, row, width * 0.40] : [62, row + h + 44, width - 62 - 16];
  const matrix = { x, y, w: Math.min(most, Math.max(h * 1.6, ranks * 52)), h };
  return { heat, drops, bars, matrix, height: y + h + 26 };
}

class ExpertsPicture {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "experts"));
    this.canvas.setAttribute("role", "application");
    this.cursor = null;
    this.surface = new Surface(this.canvas, (ctx, w) => this.paint(ctx, w), (w) => expertsLayout(this.data, w).height);
    this.stops = [onThemeChange(() => this.update())];
    this.canvas.addEventListener("pointermove", (e) => this.point(e.offsetX, e.offsetY));
    this.canvas.addEventListener("pointerleave", () => this.look(null));
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    model.on("change:_header", () => this.update());
    this.update();
  }

  update() {
    this.header = this.model.get("_header");
    this.data = readExperts(this.header, this.model.get("_frame"));
    const last = this.data.columns - 1;
    const dropped = last < 0 ? "no step yet" : `step ${this.data.steps[last]}, dropped ${percent(this.data.dropped[last])}`;
    this.canvas.setAttribute("aria-label", `Load of ${this.data.experts} experts on ${this.data.ranks} ranks: ${dropped}. Arrow keys read single values.`);
    this.surface.invalidate();
  }

  paint(ctx, width) {
    const place = expertsLayout(this.data, width);
    const scene = { ...this.data, theme: themeOf(this.root), stops: this.header.scale, cursor: this.cursor };
    paintHeat(ctx, scene, place.heat);
    paintDrops(ctx, scene, place.drops);
    paintBars(ctx, scene, place.bars);
    paintMatrix(ctx, scene, place.matrix);
    markDrawn(this.root, this.model);
  }

  point(x, y) {
    const { heat, matrix } = expertsLayout(this.data, this.surface.width);
    const { columns, experts, ranks } = this.data;
    const inside = (box) => x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h;
    if (columns && inside(heat)) {
      this.look({ column: Math.floor(((x - heat.x) / heat.w) * columns), expert: Math.floor(((y - heat.y) / heat.h) * experts) });
    } else if (columns && inside(matrix)) {
      this.look({ from: Math.floor(((y - matrix.y) / matrix.h) * ranks), to: Math.floor(((x - matrix.x) / matrix.w) * ranks) });
    } else this.look(null);
  }

  look(cursor) {
    this.cursor = cursor;
    const lines = cursor ? this.describe(cursor) : [];
    fillTip(this.tip, lines);
    if (cursor) {
      const { heat, matrix } = expertsLayout(this.data, this.surface.width);
      const box = cursor.expert === undefined ? matrix : heat;
      const [i, n, j, m] = cursor.expert === undefined
        ? [cursor.to, this.data.ranks, cursor.from, this.data.ranks]
        : [cursor.column, this.data.columns, cursor.expert, this.data.experts];
      placeTip(this.tip, box.x + ((i + 0.5) / n) * box.w, box.y + ((j + 1) / m) * box.h + 8, this.surface.width);
    }
    this.surface.invalidate();
    return lines;
  }

  describe(cursor) {
    const { load, experts, steps, traffic, ranks, source } = this.data;
    if (cursor.expert === undefined) {
      return [`rank ${cursor.from} to rank ${cursor.to}`, `${bytes(traffic[cursor.from * ranks + cursor.to])} (${source})`];
    }
    const row = load.subarray(cursor.column * experts, (cursor.column + 1) * experts);
    const mean = row.reduce((a, b) => a + b, 0) / experts;
    const tokens = row[cursor.expert];
    return [`expert ${cursor.expert}, step ${steps[cursor.column]}`, `${three(tokens)} tokens (${source})`, `${(tokens / (mean || 1)).toFixed(2)} x the mean`];
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const { columns, experts } = this.data;
    if (event.key === "Escape") this.look(null);
    else if (moves[event.key] && columns) {
      const [dx, dy] = moves[event.key];
      const { column = columns - 1, expert = 0 } = this.cursor?.expert === undefined ? {} : this.cursor;
      const kept = (v, n) => Math.min(n - 1, Math.max(0, v));
      this.spoken.textContent = this.look({ column: kept(column + dx, columns), expert: kept(expert + dy, experts) }).join(". ");
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
  const picture = new ExpertsPicture(model, el);
  return () => picture.dispose();
}

export default { render };

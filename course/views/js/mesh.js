// The ranks as a grid, once for each axis: ranks of one colour and letter talk to each other over it.

import { FONT, Surface } from "./canvas.js";
import { frameOf, markDrawn } from "./dom.js";
import { CAPTION_LINE, broken } from "./format.js";
import { onThemeChange, themeOf } from "./theme.js";

const MESH_CAPTION = 22, PANEL_GAP = 18, PANEL_TITLE = 22, CELL = 34, CELL_GAP = 3;

// Where each panel stands: as many beside each other as fit.
export function meshLayout(panels, ranks, columns, width, captionLines = 1) {
  const top = MESH_CAPTION + (captionLines - 1) * CAPTION_LINE;
  const wide = Math.max(columns, 4) * CELL + PANEL_GAP;
  const across = Math.max(1, Math.min(panels, Math.floor((width + PANEL_GAP) / wide)));
  const tall = PANEL_TITLE + Math.ceil(ranks / columns) * CELL + 8;
  const places = Array.from({ length: panels }, (_, i) => ({ x: (i % across) * wide, y: top + Math.floor(i / across) * tall }));
  return { places, height: top + Math.ceil(panels / across) * tall };
}

class MeshPicture {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "mesh"));
    this.bar.style.display = "none";
    this.canvas.setAttribute("role", "img");
    this.surface = new Surface(this.canvas, (ctx, w) => this.paint(ctx, w), (w) => this.layout(w).height);
    this.stops = [onThemeChange(() => this.update())];
    model.on("change:_header", () => this.update());
    this.update();
  }

  layout(width) {
    const { panels = [], ranks = 0, columns = 1, caption = "" } = this.header;
    return meshLayout(panels.length, ranks, columns, width, broken(caption, width).length);
  }

  update() {
    this.header = this.model.get("_header");
    this.canvas.setAttribute("aria-label", this.header.said ?? "no mesh yet");
    this.surface.invalidate();
  }

  paint(ctx, width) {
    const { panels = [] } = this.header;
    const ink = getComputedStyle(this.root).color;
    ctx.textBaseline = "middle";
    this.layout(width).places.forEach((place, i) => this.panel(ctx, panels[i], place, ink));
    ctx.fillStyle = themeOf(this.root).soft;
    ctx.font = `12px ${FONT}`;
    ctx.textAlign = "left";
    broken(this.header.caption ?? "", width).forEach((line, i) => ctx.fillText(line, 0, 9 + i * CAPTION_LINE));
    markDrawn(this.root, this.model);
  }

  panel(ctx, { title, lines }, { x, y }, ink) {
    const { columns, colours, inks, letters } = this.header;
    ctx.font = `12px ${FONT}`;
    ctx.textAlign = "left";
    ctx.fillStyle = ink;
    ctx.fillText(title, x, y + 9);
    ctx.textAlign = "center";
    lines.forEach((line, rank) => {
      const [left, top] = [x + (rank % columns) * CELL, y + PANEL_TITLE + Math.floor(rank / columns) * CELL];
      ctx.fillStyle = colours[line % colours.length];
      ctx.fillRect(left, top, CELL - CELL_GAP, CELL - CELL_GAP);
      ctx.fillStyle = inks[line % colours.length];
      ctx.fillText(`${rank}${letters[line % letters.length]}`, left + (CELL - CELL_GAP) / 2, top + (CELL - CELL_GAP) / 2);
    });
  }

  dispose() {
    this.stops.forEach((stop) => stop());
    this.surface.dispose();
  }
}

function render({ model, el }) {
  const picture = new MeshPicture(model, el);
  return () => picture.dispose();
}

export default { render };

// The causal mask once for each rank: what it computes in colour, what others compute in grey.

import { FONT, Surface } from "./canvas.js";
import { frameOf, markDrawn } from "./dom.js";
import { CAPTION_LINE, broken } from "./format.js";
import { onThemeChange, themeOf } from "./theme.js";

const GAP = 14, CAPTION = 22, TITLE = 18, NOTE = 20;

// Squares of equal side, four to a line at most, and about as many in each line.
export function masksLayout(ranks, width, captionLines = 1) {
  const top = CAPTION + (captionLines - 1) * CAPTION_LINE;
  const lines = Math.max(1, Math.ceil(ranks / 4));
  const columns = Math.max(1, Math.ceil(ranks / lines));
  const side = Math.max(40, Math.min(200, Math.floor((width - GAP) / columns) - GAP));
  const places = Array.from({ length: ranks }, (_, r) => ({
    x: GAP + (r % columns) * (side + GAP),
    y: top + TITLE + Math.floor(r / columns) * (side + TITLE + NOTE),
  }));
  return { side, places, height: top + lines * (side + TITLE + NOTE) };
}

class Masks {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "masks"));
    this.canvas.setAttribute("role", "img");
    this.surface = new Surface(this.canvas, (ctx, w) => this.paint(ctx, w), (w) => this.layout(w).height);
    this.stops = [onThemeChange(() => this.update())];
    model.on("change:_header", () => this.update());
    this.update();
  }

  layout(width) {
    const { ranks = 0, caption = "" } = this.header;
    return masksLayout(ranks, width, broken(caption, width - GAP).length);
  }

  update() {
    this.header = this.model.get("_header");
    this.frame = this.model.get("_frame");
    this.canvas.setAttribute("aria-label", this.header.said ?? "no mask yet");
    this.surface.invalidate();
  }

  paint(ctx, width) {
    const { ranks = 0, size = 0, titles = [], notes = [], mine, caption = "" } = this.header;
    const { side, places } = this.layout(width);
    const { ink, soft } = themeOf(this.root);
    const write = (words, x, y, colour) => {
      ctx.fillStyle = colour;
      ctx.fillText(words, x, y);
    };
    ctx.font = `12px ${FONT}`;
    if (ranks) broken(caption, width - GAP).forEach((line, i) => write(line, GAP, 14 + i * CAPTION_LINE, soft));
    places.forEach(({ x, y }, rank) => {
      write(titles[rank], x, y - 5, ink);
      write(notes[rank], x, y + side + 14, soft);
      const edge = (i) => Math.round((i * side) / size); // whole pixels: translucent rows must neither overlap nor gape
      for (let q = 0; q < size; q++) this.row(ctx, (rank * size + q) * size, x, y + edge(q), edge(q + 1) - edge(q), edge, [ink, ink, mine]);
    });
    markDrawn(this.root, this.model);
  }

  // Neighbours of one kind are filled together.
  row(ctx, at, x, y, height, edge, colours) {
    const { size } = this.header;
    for (let start = 0, k = 1; k <= size; k++) {
      const kind = this.frame.getUint8(at + start);
      if (k < size && this.frame.getUint8(at + k) === kind) continue;
      ctx.fillStyle = colours[kind];
      ctx.globalAlpha = [0.06, 0.25, 1][kind];
      ctx.fillRect(x + edge(start), y, edge(k) - edge(start), height);
      start = k;
    }
    ctx.globalAlpha = 1;
  }

  dispose() {
    this.stops.forEach((stop) => stop());
    this.surface.dispose();
  }
}

function render({ model, el }) {
  const picture = new Masks(model, el);
  return () => picture.dispose();
}

export default { render };

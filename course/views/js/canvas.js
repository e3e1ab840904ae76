// A canvas that is sharp on any screen, redrawn at most once a frame, and patterns for fills.

export class Surface {
  // `paint(ctx, width, height)` draws in CSS pixels; `height()` says how tall the picture is.
  constructor(canvas, paint, height) {
    Object.assign(this, { canvas, paint, height, pending: 0, width: 0 });
    this.watcher = new ResizeObserver(() => this.invalidate());
    this.watcher.observe(canvas.parentElement);
  }

  invalidate() {
    if (!this.pending) this.pending = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.pending = 0;
    const width = Math.floor(this.canvas.parentElement.clientWidth);
    if (!width) return;
    const height = this.height(width);
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      Object.assign(this.canvas, { width: w, height: h });
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    this.width = width;
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    this.paint(ctx, width, height, ratio);
  }

  dispose() {
    cancelAnimationFrame(this.pending);
    this.watcher.disconnect();
  }
}

const STROKES = {
  "/": [[0, 8, 8, 0], [-2, 2, 2, -2], [6, 10, 10, 6]],
  "\\": [[0, 0, 8, 8], [-2, 6, 2, 10], [6, -2, 10, 2]],
  "-": [[0, 2, 8, 2], [0, 6, 8, 6]],
  "|": [[2, 0, 2, 8], [6, 0, 6, 8]],
  x: [[0, 8, 8, 0], [0, 0, 8, 8]],
};

const patterns = new Map();

// A repeating hatch of thin lines or dots in `ink`, or null where there is none.
export function hatch(ctx, kind, ink, ratio) {
  if (!kind) return null;
  const key = `${kind}${ink}${ratio}`;
  if (!patterns.has(key)) patterns.set(key, makeTile(kind, ink, ratio));
  const pattern = ctx.createPattern(patterns.get(key), "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

function makeTile(kind, ink, ratio) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(8 * ratio);
  const ctx = tile.getContext("2d");
  ctx.scale(tile.width / 8, tile.height / 8);
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.globalAlpha = 0.38;
  ctx.lineWidth = 1;
  for (const [x0, y0, x1, y1] of STROKES[kind] ?? []) {
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.lineTo(x1, y1);
    ctx.stroke();
  }
  if (kind === ".") for (const [x, y] of [[2, 2], [6, 6]]) ctx.fillRect(x - 0.9, y - 0.9, 1.8, 1.8);
  return tile;
}

// A row of the legend: a small canvas with the fill and its hatch.
export function swatch(fill, pattern, ink) {
  const canvas = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(18 * ratio);
  canvas.height = Math.round(12 * ratio);
  canvas.className = "mp-swatch";
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.fillStyle = fill;
  ctx.fillRect(0, 0, 18, 12);
  const lines = hatch(ctx, pattern, ink, ratio);
  if (lines) {
    ctx.fillStyle = lines;
    ctx.fillRect(0, 0, 18, 12);
  }
  return canvas;
}

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

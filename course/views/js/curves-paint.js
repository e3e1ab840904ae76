// Axes (linear or logarithmic) and curves.

import { FONT } from "./canvas.js";
import { tickText, ticks } from "./format.js";
import { onTheme } from "./scale.js";

const LEFT_EDGE = 74, RIGHT_EDGE = 18, TOP_EDGE = 26, BOTTOM_EDGE = 40;
const LEGEND_LINE = 16, LETTER = 6.4, SAMPLE = 28, LEGEND_GAP = 16; // pixels

// On which line of the legend each label stands: the title begins the first, and none runs beyond the right edge.
export function legendLines(title, labels, width) {
  let x = LEFT_EDGE + title.length * (LETTER + 0.6) + 22, line = 0;
  return labels.map((label) => {
    const long = SAMPLE + label.length * LETTER;
    if (x + long > width && x > LEFT_EDGE) [x, line] = [LEFT_EDGE, line + 1];
    x += long + LEGEND_GAP;
    return line;
  });
}

// From values to pixels. An axis is [low, high] in values, or in powers of ten where it is logarithmic.
export class CurveAxes {
  constructor(header, series, width, height) {
    this.log = { x: (header.log ?? "").includes("x"), y: (header.log ?? "").includes("y") };
    this.legend = legendLines(header.title || header.y || "", series.map((s) => s.label ?? ""), width);
    const top = TOP_EDGE + LEGEND_LINE * Math.max(0, ...this.legend);
    this.box = { x: LEFT_EDGE, y: top, w: Math.max(20, width - LEFT_EDGE - RIGHT_EDGE), h: Math.max(40, height - top - BOTTOM_EDGE) };
    this.xRange = spread(series.map((s) => s.x), this.log.x, 0);
    this.yRange = spread(series.map((s) => s.y), this.log.y, 0.06);
    this.whole = { x: areWhole(series.map((s) => s.x)), y: areWhole(series.map((s) => s.y)) };
  }

  x(value) {
    return this.box.x + along(value, this.xRange, this.log.x) * this.box.w;
  }

  y(value) {
    return this.box.y + (1 - along(value, this.yRange, this.log.y)) * this.box.h;
  }

  xAt(pixel) {
    const value = this.xRange[0] + ((pixel - this.box.x) / this.box.w) * (this.xRange[1] - this.xRange[0]);
    return this.log.x ? 10 ** value : value;
  }
}

function along(value, [low, high], log) {
  return ((log ? Math.log10(Math.max(value, 1e-300)) : value) - low) / (high - low);
}

// The range of all finite values with a margin; a range that starts near zero starts at zero.
export function spread(arrays, log, margin) {
  let low = Infinity, high = -Infinity;
  for (const array of arrays) {
    for (const raw of array) {
      const value = log ? Math.log10(raw) : raw;
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) return [0, 1];
  if (!log && low > 0 && low < 0.35 * high) low = 0;
  const edge = (high - low || Math.abs(high) || 1) * margin;
  return high > low ? [low - (low === 0 ? 0 : edge), high + edge] : [low - 0.5 * (edge || 1), high + (edge || 1)];
}

// Whether an axis counts something: there is no half a microbatch.
function areWhole(arrays) {
  return arrays.every((array) => array.every((value) => Number.isInteger(value) || !Number.isFinite(value)));
}

// Where to write on an axis, and what: `[value, text]`.
export function labelled(range, log, count, unit, whole = false) {
  const values = axisTicks(range, log, count, whole);
  const texts = log ? values.map((value) => tickText([value], unit)[0]) : tickText(values, unit);
  return values.map((value, i) => [value, texts[i]]);
}

function axisTicks([low, high], log, count, whole) {
  if (!log) return ticks(low, high, count, whole);
  const out = [];
  const multiples = high - low > 2.5 ? [1] : high - low > 1 ? [1, 3] : [1, 2, 5];
  for (let p = Math.floor(low); p <= high; p++) for (const m of multiples) if (p + Math.log10(m) >= low - 1e-9 && p + Math.log10(m) <= high + 1e-9) out.push(m * 10 ** p);
  return out;
}

export function paintCurves(ctx, picture) {
  const { axes, header, theme, series, cursor } = picture;
  const { box } = axes;
  paintAxes(ctx, picture);
  ctx.save();
  ctx.beginPath();
  ctx.rect(box.x - 4, box.y - 4, box.w + 8, box.h + 8);
  ctx.clip();
  const shown = series.map((s) => ({ ...s, colour: onTheme(s.colour, theme) }));
  for (const curve of shown) (curve.points ? paintPoints : paintLine)(ctx, axes, curve);
  if (cursor) stroke(ctx, theme.soft, axes.x(cursor.x), box.y, axes.x(cursor.x), box.y + box.h);
  ctx.restore();
  paintLegend(ctx, { ...picture, series: shown });
  if (!series.some((s) => s.count)) text(ctx, theme, "nothing yet", box.x + box.w / 2, box.y + box.h / 2, "center");
  text(ctx, theme, header.x, box.x + box.w / 2, box.y + box.h + 31, "center");
  if (header.title) upright(ctx, theme, header.y, 12, box.y + box.h / 2); // without a title, the name of this axis stands there
}

// Words that run upwards, centred on (x, y).
function upright(ctx, theme, words, x, y) {
  ctx.save();
  ctx.translate(x, y);
  ctx.rotate(-Math.PI / 2);
  text(ctx, theme, words, 0, 0, "center");
  ctx.restore();
}

function text(ctx, theme, words, x, y, align, ink = theme.soft, size = 11) {
  ctx.font = `${size}px ${FONT}`;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillStyle = ink;
  ctx.fillText(words, x, y);
}

function stroke(ctx, colour, x0, y0, x1, y1) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
  ctx.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  ctx.stroke();
}

function paintAxes(ctx, { axes, header, theme }) {
  const { box } = axes;
  for (const [value, words] of labelled(axes.xRange, axes.log.x, box.w / 100, header.xUnit, axes.whole.x)) {
    stroke(ctx, theme.line, axes.x(value), box.y, axes.x(value), box.y + box.h);
    text(ctx, theme, words, axes.x(value), box.y + box.h + 13, "center");
  }
  for (const [value, words] of labelled(axes.yRange, axes.log.y, box.h / 34, header.yUnit, axes.whole.y)) {
    stroke(ctx, theme.line, box.x, axes.y(value), box.x + box.w, axes.y(value));
    text(ctx, theme, words, box.x - 8, axes.y(value), "right");
  }
}

function paintLine(ctx, axes, curve) {
  ctx.strokeStyle = curve.colour;
  ctx.lineWidth = 2;
  ctx.lineJoin = "round";
  ctx.setLineDash(curve.dash);
  ctx.beginPath();
  for (let i = 0, joined = false; i < curve.count; i++) {
    const shown = Number.isFinite(curve.y[i]); // a gap where a value is not a number
    if (shown) ctx[joined ? "lineTo" : "moveTo"](axes.x(curve.x[i]), axes.y(curve.y[i]));
    joined = shown;
  }
  ctx.stroke();
  ctx.setLineDash([]);
}

function paintPoints(ctx, axes, curve) {
  for (let i = 0; i < curve.count; i++) if (Number.isFinite(curve.y[i])) paintMark(ctx, curve, axes.x(curve.x[i]), axes.y(curve.y[i]));
}

const CORNERS = { s: [[-4, -4], [4, -4], [4, 4], [-4, 4]], "^": [[0, -5], [5, 4], [-5, 4]], v: [[0, 5], [5, -4], [-5, -4]], D: [[0, -5], [5, 0], [0, 5], [-5, 0]] };

function paintMark(ctx, { mark, colour }, x, y) {
  ctx.beginPath();
  if (CORNERS[mark]) CORNERS[mark].forEach(([dx, dy], i) => ctx[i ? "lineTo" : "moveTo"](x + dx, y + dy));
  else ctx.arc(x, y, 4, 0, 2 * Math.PI);
  ctx.fillStyle = colour;
  ctx.globalAlpha = 0.85;
  ctx.fill();
  ctx.globalAlpha = 1;
}

// Title at the left, then a sample and the name of each curve.
function paintLegend(ctx, { axes, header, theme, series }) {
  const name = header.title || header.y;
  text(ctx, theme, name, axes.box.x, 11, "left", theme.ink, 12);
  let [x, line] = [axes.box.x + ctx.measureText(name).width + 22, 0];
  series.forEach((curve, i) => {
    if (axes.legend[i] > line) [x, line] = [axes.box.x, axes.legend[i]];
    const y = 11 + line * LEGEND_LINE;
    if (curve.points) paintMark(ctx, curve, x + 11, y);
    else paintSample(ctx, curve, x, y);
    text(ctx, theme, curve.label, x + SAMPLE, y, "left", theme.ink);
    x += SAMPLE + ctx.measureText(curve.label).width + LEGEND_GAP;
  });
}

function paintSample(ctx, curve, x, y) {
  ctx.strokeStyle = curve.colour;
  ctx.lineWidth = 2;
  ctx.setLineDash(curve.dash);
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(x + 23, y);
  ctx.stroke();
  ctx.setLineDash([]);
}

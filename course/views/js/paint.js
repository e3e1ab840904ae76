// Draws a timeline: tracks (idle shows as an empty track), spans by kind, labels where they fit, the time axis.

import { FONT, hatch } from "./canvas.js";
import { tickText, ticks, time } from "./format.js";
import { BUSY, COLUMNS, COUNT, CRITICAL, END, LABEL, ROW, STAGE, START, spanText } from "./frame.js";
import { LEFT } from "./layout.js";

export function paintTimeline(ctx, picture) {
  const { blocks, layout, scale, theme } = picture;
  blocks.forEach((block, b) => paintRanks(ctx, picture, block, layout.blocks[b]));
  paintGrid(ctx, picture);
  blocks.forEach((block, b) => {
    paintTitle(ctx, picture, block, layout.blocks[b]);
    ctx.save();
    ctx.beginPath();
    ctx.rect(scale.left, layout.blocks[b].top, scale.right - scale.left, layout.blocks[b].bottom - layout.blocks[b].top);
    ctx.clip();
    paintSpans(ctx, picture, block, layout.blocks[b]);
    if (picture.selected?.block === b) paintSelection(ctx, theme, placeOf(picture, b, picture.selected.index), 2.5);
    if (picture.hovered?.block === b) paintSelection(ctx, theme, placeOf(picture, b, picture.hovered.index), 1.5);
    ctx.restore();
  });
}

function paintGrid(ctx, { layout, scale, theme, unit }) {
  const at = ticks(scale.low, scale.high, Math.max(2, (scale.right - scale.left) / 110));
  const text = tickText(at, unit);
  ctx.font = `11px ${FONT}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  at.forEach((t, i) => {
    const x = Math.round(scale.x(t)) + 0.5;
    ctx.strokeStyle = theme.line;
    ctx.lineWidth = 1;
    for (const block of layout.blocks) line(ctx, x, block.ranks[0]?.y ?? block.top, x, block.bottom - 2);
    line(ctx, x, layout.axis, x, layout.axis + 4);
    ctx.fillStyle = theme.soft;
    ctx.fillText(text[i], x, layout.axis + 7);
  });
  ctx.strokeStyle = theme.soft;
  line(ctx, scale.left, layout.axis + 0.5, scale.right, layout.axis + 0.5);
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

function paintTitle(ctx, { theme, scale, unit }, block, place) {
  const y = place.top + 12;
  ctx.font = `600 11px ${FONT}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const width = ctx.measureText(block.source).width + 14;
  ctx.fillStyle = theme.ink;
  ctx.globalAlpha = 0.12;
  ctx.beginPath();
  ctx.roundRect(scale.left, y - 9, width, 18, 9);
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.fillText(block.source, scale.left + 7, y + 0.5);
  ctx.font = `12px ${FONT}`;
  ctx.fillStyle = theme.soft;
  ctx.fillText(titleText(block, unit), scale.left + width + 8, y + 0.5, scale.right - scale.left - width);
}

export function titleText(block, unit) {
  if (!block.spans.length) return block.note || "nothing yet";
  return [`makespan ${time(block.makespan, unit)}`, block.idleText, block.note].filter(Boolean).join(" · ");
}

function paintRanks(ctx, { theme, scale }, block, place) {
  ctx.textBaseline = "middle";
  for (const { rank, y, h } of place.ranks) {
    if (h < 8 && rank % 4) continue;
    const middle = y + h / 2 + 0.5;
    ctx.font = `${h < 12 ? 10 : 12}px ${FONT}`;
    ctx.textAlign = "right";
    ctx.fillStyle = theme.ink;
    ctx.fillText(`rank ${rank}`, LEFT - 8, middle);
    ctx.textAlign = "left";
    ctx.font = `${h < 12 ? 10 : 11}px ${FONT}`;
    ctx.fillStyle = theme.soft;
    if (block.spans.length) ctx.fillText(`idle ${Math.round(block.idle[rank] * 100)} %`, scale.right + 8, middle);
  }
  ctx.fillStyle = theme.track;
  const end = Math.min(scale.right, scale.x(block.makespan));
  const start = Math.max(scale.left, scale.x(0));
  if (end > start) for (const strip of place.strips) ctx.fillRect(start, strip.y, end - start, strip.h);
}

// The rectangle of one span, on whole device pixels, at least one wide; `wide`: how wide before that, the same for equal times.
// A merged piece is as tall as it is busy.
export function placeOf({ blocks, layout, scale, ratio }, b, i) {
  const { spans } = blocks[b];
  const at = i * COLUMNS;
  const strip = layout.blocks[b].strips[spans[at + ROW]];
  const snap = (v) => Math.round(v * ratio) / ratio;
  const x = snap(scale.x(spans[at + START]));
  const w = Math.max(1 / ratio, snap(scale.x(spans[at + END])) - x);
  const wide = scale.x(spans[at + END]) - scale.x(spans[at + START]);
  const full = spans[at + COUNT] > 1 ? Math.min(1, spans[at + BUSY] / Math.max(spans[at + END] - spans[at + START], 1e-30)) : 1;
  const h = Math.max(1, snap(strip.h * full));
  return { x, y: strip.y + strip.h - h, w, h, wide };
}

function paintSpans(ctx, picture, block, place) {
  const byKind = new Map();
  const b = picture.blocks.indexOf(block);
  const seen = new Float64Array(block.rows.length).fill(-1e9); // where each row was last painted: pixels hold one span
  const { spans } = block;
  for (let i = 0; i < spans.length / COLUMNS; i++) {
    const row = spans[i * COLUMNS + ROW];
    if (!place.strips[row]) continue;
    const box = placeOf(picture, b, i);
    if (box.x + box.w < picture.scale.left || box.x > picture.scale.right || box.x + box.w <= seen[row]) continue;
    seen[row] = box.x + box.w;
    const kind = block.labels[spans[i * COLUMNS + LABEL]].kind;
    if (!byKind.has(kind)) byKind.set(kind, []);
    byKind.get(kind).push([i, box]);
  }
  for (const [kind, items] of byKind) paintKind(ctx, picture, block, picture.kinds[kind], items);
}

function paintKind(ctx, picture, block, kind, items) {
  const solid = new Path2D(), pale = new Path2D();
  for (const [i, { x, y, w, h }] of items) {
    const chunk = Math.floor(block.spans[i * COLUMNS + STAGE] / block.ranks);
    (chunk >= 1 ? pale : solid).rect(x, y, w > 4 ? w - 1 : w, h); // a hair between neighbours of one kind
  }
  ctx.fillStyle = kind.fill;
  ctx.fill(solid);
  ctx.globalAlpha = 0.62; // later chunks of a rank are paler
  ctx.fill(pale);
  ctx.globalAlpha = 1;
  const lines = hatch(ctx, kind.hatch, kind.ink, picture.ratio);
  if (lines) {
    ctx.fillStyle = lines;
    ctx.fill(solid);
    ctx.fill(pale);
  }
  for (const [i, box] of items) {
    if (block.spans[i * COLUMNS + CRITICAL]) outline(ctx, picture.theme, box);
    if (box.wide > 14 && box.h >= 9) paintText(ctx, picture, block, kind, i, box);
  }
}

function paintText(ctx, picture, block, kind, i, box) {
  const x = Math.max(box.x, picture.scale.left), w = Math.min(box.x + box.w, picture.scale.right) - x; // the part in view
  const { y, h } = box;
  const text = block.spans[i * COLUMNS + COUNT] > 1 ? "" : spanText(block, i);
  ctx.font = `${h > 14 ? 11 : 9}px ${FONT}`;
  const width = ctx.measureText(text).width;
  const fits = ctx.measureText(text.replace(/^I/, "F")).width <= box.wide - (box.w - w) - 3; // the thin letter has no privilege
  if (!text || !fits) return;
  const middle = x + w / 2;
  if (kind.hatch) { // a plate under the text, so that lines do not cross letters
    ctx.fillStyle = kind.fill;
    ctx.fillRect(middle - width / 2 - 2, y + 2, width + 4, h - 4);
  }
  ctx.fillStyle = kind.ink;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(text, middle, y + h / 2 + 0.5);
}

function outline(ctx, theme, { x, y, w, h }) {
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1.5;
  ctx.strokeRect(x + 0.75, y + 0.75, Math.max(0.5, w - 2.5), h - 1.5);
}

function paintSelection(ctx, theme, { x, y, w, h }, thick) {
  ctx.strokeStyle = theme.accent;
  ctx.lineWidth = thick;
  ctx.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
}

// The four parts of the experts picture.

import { FONT, hatch } from "./canvas.js";
import { bytes, percent, three } from "./format.js";
import { cssOf, inkOn, rampOf } from "./scale.js";

const LINE = 12; // pixels from one line of words to the next
const DROP = "#D55E00", BUSY_RANK = "#E69F00", RANK = "#56B4E9";

function words(ctx, theme, text, x, y, { size = 11, align = "left", ink = theme.soft, weight = 400 } = {}) {
  ctx.font = `${weight} ${size}px ${FONT}`;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillStyle = ink;
  ctx.fillText(text, x, y);
}

function title(ctx, scene, text, { x, y }) {
  words(ctx, scene.theme, text, x, y - 11, { size: 12 });
}

// Tokens over the mean of their step; 1 is balanced.
export function relativeLoad({ load, experts, columns }) {
  const out = new Float32Array(load.length);
  for (let c = 0; c < columns; c++) {
    let sum = 0;
    for (let e = 0; e < experts; e++) sum += load[c * experts + e];
    for (let e = 0; e < experts; e++) out[c * experts + e] = sum ? (load[c * experts + e] * experts) / sum : 0;
  }
  return out;
}

export function paintHeat(ctx, scene, box) {
  const { experts, columns, theme, source } = scene;
  title(ctx, scene, columns ? `tokens per expert at each step, times the mean (${source})` : "no step yet", box);
  ctx.fillStyle = theme.track;
  ctx.fillRect(box.x, box.y, box.w, box.h);
  const every = Math.ceil(experts / (box.h / 13));
  for (let e = 0; e < experts; e += every) {
    words(ctx, theme, `expert ${e}`, box.x - 8, box.y + ((e + 0.5) * box.h) / experts, { align: "right", ink: theme.ink });
  }
  if (!columns) return;
  const values = relativeLoad(scene);
  const top = Math.max(2, values.reduce((a, b) => Math.max(a, b), 0));
  const ramp = rampOf(scene.stops);
  paintPixels(ctx, box, columns, experts, (c, e) => ramp(values[c * experts + e] / top));
  paintScale(ctx, scene, { x: box.x + box.w + 14, y: box.y, w: 11, h: box.h }, ramp, top);
  if (scene.cursor?.expert !== undefined) {
    const [w, h] = [box.w / columns, box.h / experts];
    ctx.strokeStyle = "#ffffff";
    ctx.lineWidth = 2;
    ctx.strokeRect(box.x + scene.cursor.column * w, box.y + scene.cursor.expert * h, Math.max(w, 3), h);
  }
}

function paintPixels(ctx, box, width, height, colour) {
  const small = document.createElement("canvas");
  Object.assign(small, { width, height });
  const image = new ImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) image.data.set([...colour(x, y), 255], (y * width + x) * 4);
  }
  small.getContext("2d").putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(small, box.x, box.y, box.w, box.h);
}

// What is written beside a scale from 0 to `top`, and how far down: the ends give way to the even load, never one over the other.
export function scaleMarks(top, height) {
  const even = Math.min(height - 5, Math.max(5, height * (1 - 1 / top)));
  return [["1x even", even], ["0x", Math.max(height - 5, even + LINE)], [`${three(top)}x`, Math.min(5, even - LINE)]];
}

function paintScale(ctx, { theme }, box, ramp, top) {
  for (let i = 0; i < box.h; i++) {
    ctx.fillStyle = cssOf(ramp(1 - i / box.h));
    ctx.fillRect(box.x, box.y + i, box.w, 1.5);
  }
  for (const [text, y] of scaleMarks(top, box.h)) words(ctx, theme, text, box.x + box.w + 5, box.y + y);
}

export function paintDrops(ctx, scene, box) {
  const { columns, dropped, steps, theme, source } = scene;
  if (!columns) return;
  title(ctx, scene, `dropped: ${percent(dropped[columns - 1])} at the last step (${source})`, box);
  const top = Math.max(0.05, dropped.reduce((a, b) => Math.max(a, b), 0) * 1.1);
  ctx.fillStyle = theme.track;
  ctx.fillRect(box.x, box.y, box.w, box.h);
  const x = (c) => box.x + ((c + 0.5) / columns) * box.w;
  const y = (share) => box.y + box.h * (1 - share / top);
  ctx.beginPath();
  for (let c = 0; c < columns; c++) ctx[c ? "lineTo" : "moveTo"](x(c), y(dropped[c]));
  Object.assign(ctx, { strokeStyle: DROP, lineWidth: 1.5, fillStyle: DROP });
  ctx.stroke();
  ctx.lineTo(x(columns - 1), box.y + box.h);
  ctx.lineTo(x(0), box.y + box.h);
  ctx.globalAlpha = 0.25;
  ctx.fill();
  ctx.globalAlpha = 1;
  words(ctx, theme, percent(top), box.x - 8, box.y + 5, { align: "right" });
  words(ctx, theme, "0 %", box.x - 8, box.y + box.h - 4, { align: "right" });
  const count = Math.min(columns, Math.max(2, Math.floor(box.w / 120)));
  for (let i = 0; i < count; i++) {
    const c = Math.round((i * (columns - 1)) / Math.max(1, count - 1));
    words(ctx, theme, i ? String(steps[c]) : `step ${steps[c]}`, x(c), box.y + box.h + 12, { align: "center" });
  }
}

export function paintBars(ctx, scene, box) {
  const { ranks, rankLoad, theme, columns, source } = scene;
  if (!columns) return;
  const most = rankLoad.reduce((a, b) => Math.max(a, b), 0) || 1;
  const mean = rankLoad.reduce((a, b) => a + b, 0) / ranks || 1;
  const slowest = rankLoad.indexOf(most);
  title(ctx, scene, `tokens per rank, last step (${source}; dashed: mean)`, box);
  const step = box.h / ranks;
  const perToken = (box.w - 165) / most; // room for the words beside the longest bar
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1;
  ctx.setLineDash([4, 3]);
  ctx.beginPath();
  ctx.moveTo(box.x + mean * perToken, box.y - 3);
  ctx.lineTo(box.x + mean * perToken, box.y + box.h);
  ctx.stroke();
  ctx.setLineDash([]);
  for (let r = 0; r < ranks; r++) {
    const [y, w, h] = [box.y + r * step, rankLoad[r] * perToken, Math.max(2, step - 5)];
    ctx.fillStyle = r === slowest ? BUSY_RANK : RANK;
    ctx.fillRect(box.x, y, w, h);
    if (r === slowest) {
      ctx.fillStyle = hatch(ctx, "/", "#111111", window.devicePixelRatio || 1);
      ctx.fillRect(box.x, y, w, h);
    }
    if (step < 11 && r !== slowest) continue;
    words(ctx, theme, `rank ${r}`, box.x - 8, y + h / 2, { align: "right", ink: theme.ink });
    const mark = r === slowest ? ` slowest, ${(most / mean).toFixed(2)} x mean` : "";
    words(ctx, theme, `${rankLoad[r].toLocaleString("en-US")}${mark}`, box.x + w + 6, y + h / 2, { ink: theme.ink, weight: mark ? 600 : 400 });
  }
}

export function paintMatrix(ctx, scene, box) {
  const { ranks, traffic, theme, columns, source, cursor } = scene;
  if (!columns) return;
  title(ctx, scene, `all-to-all bytes, row to column (${source})`, box);
  const top = traffic.reduce((a, b) => Math.max(a, b), 0) || 1;
  const ramp = rampOf(scene.stops);
  const [w, h] = [box.w / ranks, box.h / ranks];
  for (let from = 0; from < ranks; from++) {
    for (let to = 0; to < ranks; to++) {
      const value = traffic[from * ranks + to];
      const colour = ramp(value / top);
      ctx.fillStyle = cssOf(colour);
      ctx.fillRect(box.x + to * w, box.y + from * h, w - 1, h - 1);
      const text = value ? bytes(value) : "0";
      if (w > 46 && h > 12) words(ctx, theme, text, box.x + (to + 0.5) * w, box.y + (from + 0.5) * h, { size: 10, align: "center", ink: inkOn(colour) });
    }
    const shown = h >= 11 || from % 4 === 0;
    if (shown) words(ctx, theme, `rank ${from}`, box.x - 8, box.y + (from + 0.5) * h, { align: "right", ink: theme.ink });
    if (w > 24 || from % 4 === 0) words(ctx, theme, `${w > 46 ? "rank " : ""}${from}`, box.x + (from + 0.5) * w, box.y + box.h + 11, { align: "center", ink: theme.ink });
  }
  if (cursor?.from !== undefined) {
    ctx.strokeStyle = theme.accent;
    ctx.lineWidth = 2;
    ctx.strokeRect(box.x + cursor.to * w, box.y + cursor.from * h, w - 1, h - 1);
  }
}

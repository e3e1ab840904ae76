// Mouse and keys of a timeline: zoom, pan, look at a span, step through spans.

import { fillTip, placeTip } from "./dom.js";
import { bytes, time } from "./format.js";
import { BYTES, COLUMNS, COUNT, BUSY, END, LABEL, MICROBATCH, STAGE, START, spanAt, spanText } from "./frame.js";
import { panned, under, zoomed } from "./layout.js";
import { placeOf } from "./paint.js";

// Attach all of them to a picture; returns a function that detaches what outlives the canvas.
export function listen(view) {
  const { canvas } = view;
  addButtons(view);
  canvas.addEventListener("wheel", (e) => onWheel(view, e), { passive: false });
  canvas.addEventListener("pointerdown", (e) => onPress(view, e));
  canvas.addEventListener("pointermove", (e) => onMove(view, e));
  canvas.addEventListener("pointerup", () => (view.drag = null));
  canvas.addEventListener("pointerleave", () => hover(view, null));
  canvas.addEventListener("keydown", (e) => onKey(view, e));
  canvas.addEventListener("blur", () => { view.stepping = false; });
  return () => {};
}

function addButtons(view) {
  const actions = [["−", "Zoom out", () => zoom(view, 1.5)], ["+", "Zoom in", () => zoom(view, 1 / 1.5)], ["Fit", "Show all", () => show(view, null)]];
  for (const [text, title, action] of actions) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: text, title });
    button.setAttribute("aria-label", title);
    button.addEventListener("click", action);
    view.buttons.append(button);
  }
}

export function show(view, range) {
  view.window = range && range[1] - range[0] < view.end * 0.999 ? range : null;
  if (view.blocks.some((b) => b.merged)) view.model.send({ window: view.window }); // there is more to see from near
  view.surface.invalidate();
}

function range(view) {
  return view.window ?? [0, view.end];
}

function zoom(view, factor, centre = null) {
  const [low, high] = range(view);
  const chosen = view.selected && middleOf(view, view.selected);
  show(view, zoomed([low, high], factor, centre ?? chosen ?? (low + high) / 2, view.end));
}

function middleOf(view, { block, index }) {
  const { spans } = view.blocks[block];
  return (spans[index * COLUMNS + START] + spans[index * COLUMNS + END]) / 2;
}

function onWheel(view, event) {
  if (document.activeElement !== view.canvas && !event.ctrlKey && !event.metaKey) return; // let the page scroll
  event.preventDefault();
  const { scale } = view.picture(view.surface.width);
  const sideways = event.shiftKey ? event.deltaY : event.deltaX;
  if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) show(view, panned(range(view), sideways / scale.perSecond, view.end));
  else zoom(view, Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.005), scale.t(event.offsetX));
}

function onPress(view, event) {
  view.drag = { x: event.offsetX, from: range(view) };
  view.canvas.setPointerCapture(event.pointerId);
}

function onMove(view, event) {
  const { scale } = view.picture(view.surface.width);
  if (view.drag) {
    show(view, panned(view.drag.from, (view.drag.x - event.offsetX) / scale.perSecond, view.end));
    return hover(view, null);
  }
  const place = under(view.layout, event.offsetY);
  const inside = event.offsetX >= scale.left && event.offsetX <= scale.right;
  const index = place && inside ? spanAt(view.blocks[place.block], place.row, scale.t(event.offsetX), 3 / scale.perSecond) : -1;
  hover(view, index < 0 ? null : { block: place.block, index });
}

function hover(view, target) {
  if (view.hovered?.block === target?.block && view.hovered?.index === target?.index) return;
  view.hovered = target;
  showTip(view, target);
  view.surface.invalidate();
}

function showTip(view, target) {
  fillTip(view.tip, target ? describe(view, target) : []);
  if (!target) return;
  const box = placeOf(view.picture(view.surface.width), target.block, target.index);
  const below = box.y + box.h + 8;
  const fits = below + view.tip.offsetHeight < view.canvas.clientHeight + 40;
  placeTip(view.tip, box.x + box.w / 2, fits ? below : box.y - view.tip.offsetHeight - 8, view.surface.width);
}

// What there is to say about a span, line by line; the first line is its name.
export function describe({ blocks, unit }, { block, index }) {
  const b = blocks[block];
  const value = (column) => b.spans[index * COLUMNS + column];
  const label = b.labels[value(LABEL)];
  const row = b.rows[value(0)];
  const many = value(COUNT) > 1;
  const facts = [`${many ? `${value(COUNT)} spans, mostly ${label.name}` : spanText(b, index)} · rank ${row.rank} · ${b.source}`];
  facts.push(`starts at ${time(value(START), unit)}, takes ${time(value(END) - value(START), unit)}`);
  if (many) facts.push(`busy for ${time(value(BUSY), unit)} of it`);
  if (value(STAGE) >= 0 && !many) facts.push(`stage ${value(STAGE)}${value(MICROBATCH) >= 0 ? `, microbatch ${value(MICROBATCH)}` : ""}`);
  const sent = value(BYTES) ? `${bytes(value(BYTES))} (${b.source === "predicted" ? "predicted" : "counted"})` : ""; // a receive sends none
  const over = label.axis ? `over axis ${label.axis}` : "";
  if (sent || over) facts.push(`${sent} ${over}`.trim());
  const toward = { send: "to", recv: "from" }[label.name] ?? "with";
  if (label.peers?.length && !many) facts.push(`${toward} rank ${label.peers.join(", ")}`);
  if (label.phase) facts.push(`during ${label.phase}`);
  return facts;
}

const KEYS = {
  "+": (view) => zoom(view, 1 / 1.5), "=": (view) => zoom(view, 1 / 1.5),
  "-": (view) => zoom(view, 1.5), _: (view) => zoom(view, 1.5),
  0: (view) => show(view, null), Home: (view) => show(view, null),
  ArrowLeft: (view) => slide(view, -0.15), ArrowRight: (view) => slide(view, 0.15),
  ArrowUp: (view) => toRow(view, -1), ArrowDown: (view) => toRow(view, 1),
  Enter: (view) => { view.stepping = true; view.selected ?? choose(view, first(view)); },
  Escape: (view) => { view.stepping = false; choose(view, null); },
};

function onKey(view, event) {
  if (event.key === "Tab") {
    if (!view.stepping || !step(view, event.shiftKey ? -1 : 1)) return; // Tab leaves the picture unless it steps
  } else if (KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) KEYS[event.key](view);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function slide(view, share) {
  const [low, high] = range(view);
  show(view, panned([low, high], (high - low) * share, view.end));
}

function first(view) {
  const block = view.blocks.findIndex((b) => b.spans.length);
  return block < 0 ? null : { block, index: 0 };
}

// The next or previous span in the same row, then in the next row; false at the very end.
function step(view, by) {
  if (!view.selected) return false;
  const { block, index } = view.selected;
  const count = view.blocks[block].spans.length / COLUMNS;
  if (index + by >= 0 && index + by < count) choose(view, { block, index: index + by });
  else {
    const other = view.blocks[block + by];
    if (!other?.spans.length) return false;
    choose(view, { block: block + by, index: by > 0 ? 0 : other.spans.length / COLUMNS - 1 });
  }
  return true;
}

// The span nearest in time in the row above or below.
function toRow(view, by) {
  if (!view.selected) return choose(view, first(view));
  const t = middleOf(view, view.selected);
  let { block } = view.selected;
  let row = view.blocks[block].spans[view.selected.index * COLUMNS] + by;
  for (; view.blocks[block]; row += by) {
    const b = view.blocks[block];
    if (row < 0 || row >= b.rows.length) {
      block += by;
      row = by > 0 ? -1 : view.blocks[block]?.rows.length ?? 0;
      continue;
    }
    const index = spanAt(b, row, t, Infinity);
    if (index >= 0) return choose(view, { block, index });
  }
}

function choose(view, target) {
  view.selected = target;
  showTip(view, target);
  view.spoken.textContent = target ? describe(view, target).join(". ") : "";
  if (target) {
    const [low, high] = range(view);
    const middle = middleOf(view, target);
    if (middle < low || middle > high) show(view, panned([low, high], middle - (low + high) / 2, view.end));
  }
  view.surface.invalidate();
}

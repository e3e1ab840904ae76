// Slots of a schedule, the one with the cursor, and the one being moved.

import { FONT, hatch } from "./canvas.js";
import { EDGE, ROW_HEIGHT, SIDE, SLOT_HEIGHT, TOP, slotBox } from "./schedule-layout.js";

function label(ctx, words, x, y, { size = 12, align = "left", ink }) {
  ctx.font = `${size}px ${FONT}`;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillStyle = ink;
  ctx.fillText(words, x, y);
}

export function paintSchedule(ctx, scene) {
  const { header, theme, width } = scene;
  label(ctx, header.title, EDGE, 12, { ink: theme.soft });
  header.rows.forEach((row, rank) => {
    const y = TOP + rank * ROW_HEIGHT;
    label(ctx, `rank ${rank}`, EDGE - 8, y + SLOT_HEIGHT / 2, { align: "right", ink: theme.ink });
    label(ctx, header.held[rank], width - SIDE + 8, y + SLOT_HEIGHT / 2, { size: 11, ink: theme.soft });
    ctx.fillStyle = theme.track;
    ctx.fillRect(EDGE, y, width - EDGE - SIDE, SLOT_HEIGHT);
    row.forEach((slot, i) => paintSlot(ctx, scene, slot, slotBox(header, width, rank, i), header.rows.length));
  });
  if (scene.held) paintHeld(ctx, scene);
  else if (scene.at) frame(ctx, theme.accent, slotBox(header, width, scene.at.rank, scene.at.slot), 2.5);
}

function paintSlot(ctx, { header, ratio }, slot, box, ranks) {
  const kind = header.kinds[slot.kind];
  const w = Math.max(1, box.w - 1);
  ctx.globalAlpha = slot.stage >= ranks ? 0.62 : 1; // later chunks of a rank are paler
  ctx.fillStyle = kind.fill;
  ctx.fillRect(box.x, box.y, w, box.h);
  ctx.globalAlpha = 1;
  const lines = hatch(ctx, kind.hatch, kind.ink, ratio);
  if (lines) {
    ctx.fillStyle = lines;
    ctx.fillRect(box.x, box.y, w, box.h);
  }
  ctx.font = `11px ${FONT}`;
  const size = ctx.measureText(slot.text).width;
  if (ctx.measureText(slot.text.replace(/^I/, "F")).width > box.w - 3) return;
  if (lines) {
    ctx.fillStyle = kind.fill;
    ctx.fillRect(box.x + (w - size) / 2 - 2, box.y + 3, size + 4, box.h - 6);
  }
  label(ctx, slot.text, box.x + w / 2, box.y + box.h / 2, { size: 11, align: "center", ink: kind.ink });
}

// A frame round the slot taken up, a bar where it would come to stand, and the slot itself under the pointer.
function paintHeld(ctx, scene) {
  const { header, theme, width, held } = scene;
  const box = slotBox(header, width, held.rank, held.slot);
  frame(ctx, theme.ink, box, 2);
  const others = header.rows[held.rank].map((_, i) => i).filter((i) => i !== held.slot);
  const next = others[held.to];
  const last = slotBox(header, width, held.rank, others[others.length - 1] ?? held.slot);
  const x = next === undefined ? last.x + last.w : slotBox(header, width, held.rank, next).x;
  if (held.x !== undefined) {
    const lifted = { ...box, x: held.x - held.grip, y: box.y - 3 };
    ctx.clearRect(lifted.x, lifted.y, lifted.w, lifted.h);
    paintSlot(ctx, scene, header.rows[held.rank][held.slot], lifted, header.rows.length);
    frame(ctx, theme.ink, lifted, 2);
  }
  ctx.fillStyle = theme.accent;
  ctx.fillRect(x - 2, TOP + held.rank * ROW_HEIGHT - 3, 4, SLOT_HEIGHT + 6);
}

function frame(ctx, colour, { x, y, w, h }, thick) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = thick;
  ctx.strokeRect(x, y, w - 1, h);
}

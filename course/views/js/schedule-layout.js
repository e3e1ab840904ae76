// Where the slots of a schedule stand, in CSS pixels. Pure: no canvas, no page.

export const EDGE = 62, SIDE = 74, TOP = 28, ROW_HEIGHT = 30, SLOT_HEIGHT = 24;

export function slotBox(header, width, rank, slot) {
  const scale = (width - EDGE - SIDE) / (header.makespan || 1);
  const { start, end } = header.rows[rank][slot];
  return { x: EDGE + start * scale, y: TOP + rank * ROW_HEIGHT, w: (end - start) * scale, h: SLOT_HEIGHT };
}

// The slot under a point, or null.
export function slotAt(header, width, x, y) {
  const rank = Math.floor((y - TOP) / ROW_HEIGHT);
  const row = header.rows[rank] ?? [];
  const slot = row.findIndex((_, i) => {
    const box = slotBox(header, width, rank, i);
    return x >= box.x && x < box.x + box.w;
  });
  return slot < 0 ? null : { rank, slot };
}

// Where a slot of `rank` that is let go at x would come to stand: after all slots whose middle is left of x.
export function dropAt(header, width, rank, slot, x) {
  const others = header.rows[rank].map((_, i) => i).filter((i) => i !== slot);
  return others.filter((i) => {
    const box = slotBox(header, width, rank, i);
    return box.x + box.w / 2 < x;
  }).length;
}

// Where everything of a timeline stands, in CSS pixels. Pure: no canvas, no page.

export const LEFT = 62, RIGHT = 74, TITLE = 26, AXIS = 24, BLOCK_GAP = 12;

// Strips get thinner as ranks get more: [compute, comm, gap between ranks].
export function stripHeights(groups) {
  if (groups <= 10) return [22, 11, 7];
  if (groups <= 20) return [15, 8, 5];
  if (groups <= 48) return [9, 5, 3];
  return [6, 3, 2];
}

// {height, blocks: [{top, strips: [{y, h}], ranks: [{rank, y, h}]}]}: blocks stand one above the other.
export function layOut(blocks) {
  const groups = blocks.reduce((sum, b) => sum + b.ranks, 0);
  const heights = stripHeights(groups);
  let y = 0;
  const placed = blocks.map((block, i) => {
    y += i ? BLOCK_GAP : 0;
    const top = y;
    const { strips, ranks, bottom } = layOutRows(block, y + TITLE, heights);
    y = bottom;
    return { top, bottom, strips, ranks };
  });
  return { height: y + AXIS, axis: y, blocks: placed };
}

function layOutRows(block, start, [compute, comm, gap]) {
  const strips = [], ranks = [];
  let y = start;
  for (let rank = 0, row = 0; rank < block.ranks; rank++) {
    const top = y;
    for (; row < block.rows.length && block.rows[row].rank === rank; row++) {
      const h = block.rows[row].lane === "compute" ? compute : comm;
      strips.push({ y, h });
      y += h + 1;
    }
    if (y === top) y += compute + 1; // a rank that did nothing still has its place
    ranks.push({ rank, y: top, h: y - top - 1 });
    y += gap;
  }
  return { strips, ranks, bottom: y };
}

// Time to pixels and back for the part of the time axis that is in view.
export class Scale {
  constructor(low, high, width) {
    Object.assign(this, { low, high, left: LEFT, right: Math.max(LEFT + 10, width - RIGHT) });
    this.perSecond = (this.right - this.left) / Math.max(high - low, 1e-12);
  }

  x(t) {
    return this.left + (t - this.low) * this.perSecond;
  }

  t(x) {
    return this.low + (x - this.left) / this.perSecond;
  }
}

// The window [low, high] zoomed by `factor` about `centre`, kept inside [0, end].
export function zoomed([low, high], factor, centre, end) {
  const width = Math.min(end, Math.max((high - low) * factor, end * 1e-6));
  return kept(centre - (centre - low) * (width / (high - low)), width, end);
}

export function panned([low, high], by, end) {
  return kept(low + by, high - low, end);
}

function kept(low, width, end) {
  const start = Math.min(Math.max(0, low), Math.max(0, end - width));
  return [start, start + width];
}

// What is under the point (x, y): {block, row, rank} with -1 where it is between rows.
export function under(layout, y) {
  for (const [b, block] of layout.blocks.entries()) {
    const row = block.strips.findIndex((s) => y >= s.y - 1 && y < s.y + s.h + 1);
    if (row >= 0) return { block: b, row };
  }
  return null;
}

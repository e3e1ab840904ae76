// A timeline as Python sends it: a header (text) and one float32 array of spans, column after column in each line.

export const ROW = 0, START = 1, END = 2, LABEL = 3, STAGE = 4, MICROBATCH = 5, BYTES = 6, COUNT = 7, BUSY = 8, CRITICAL = 9;
export const COLUMNS = 10;

export function floats(view) {
  if (!view || !view.byteLength) return new Float32Array(0);
  const aligned = view.byteOffset % 4 === 0 ? view : new DataView(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  return new Float32Array(aligned.buffer, aligned.byteOffset, aligned.byteLength / 4);
}

// Blocks with their spans sorted by row and start, and where in the array each row begins.
export function readFrame(header, view) {
  const all = floats(view);
  let offset = 0;
  return (header.blocks ?? []).map((block) => {
    const spans = all.subarray(offset * COLUMNS, (offset + block.spans) * COLUMNS);
    offset += block.spans;
    return { ...block, spans, first: rowStarts(spans, block.rows.length) };
  });
}

// first[r] .. first[r + 1] are the indices of the spans of row r.
export function rowStarts(spans, rows) {
  const first = new Int32Array(rows + 1);
  for (let i = 0; i < spans.length; i += COLUMNS) first[spans[i + ROW] + 1]++;
  for (let r = 0; r < rows; r++) first[r + 1] += first[r];
  return first;
}

// The index of the span of row `r` at time `t`, or the nearest one within `slack`; -1 if there is none.
export function spanAt(block, r, t, slack = 0) {
  const { spans, first } = block;
  let low = first[r], high = first[r + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle * COLUMNS + START] <= t) low = middle + 1;
    else high = middle;
  }
  let best = -1, distance = slack;
  for (const i of [low - 1, low]) {
    if (i < first[r] || i >= first[r + 1]) continue;
    const away = Math.max(0, spans[i * COLUMNS + START] - t, t - spans[i * COLUMNS + END]);
    if (away <= distance) [best, distance] = [i, away];
  }
  return best;
}

// What stands on a span: "F3" for a pipeline action, else its name.
export function spanText(block, i) {
  const { name } = block.labels[block.spans[i * COLUMNS + LABEL]];
  const microbatch = block.spans[i * COLUMNS + MICROBATCH];
  return microbatch >= 0 && name.length === 1 ? `${name}${microbatch}` : name;
}

// How many spans a block stands for, merged ones included.
export function countOf({ spans }) {
  let sum = 0;
  for (let i = 0; i < spans.length; i += COLUMNS) sum += spans[i + COUNT];
  return sum;
}

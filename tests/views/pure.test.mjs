// Functions of the pictures that need no page. Run by tests/views/test_javascript.py, where Node is present.

import assert from "node:assert/strict";
import { test } from "node:test";

const js = process.env.MINIPAR_JS;
const { broken, percent, bytes, tickText, ticks, time } = await import(`${js}/format.js`);
const { CurveAxes, labelled, legendLines, paintCurves } = await import(`${js}/curves-paint.js`);
const { scaleMarks } = await import(`${js}/experts-paint.js`);
const { expertsLayout } = await import(`${js}/experts.js`);
const { COLUMNS, readFrame, spanAt, countOf } = await import(`${js}/frame.js`);
const { describe } = await import(`${js}/gestures.js`);
const { Scale, layOut, panned, under, zoomed } = await import(`${js}/layout.js`);
const { dropAt, slotAt, slotBox } = await import(`${js}/schedule-layout.js`);
const { meshLayout } = await import(`${js}/mesh.js`);
const { stackedBars } = await import(`${js}/stacks.js`);
const { isLightText } = await import(`${js}/theme.js`);

test("numbers read the same in the browser and in Python", () => {
  for (const { value, unit, text } of JSON.parse(process.env.MINIPAR_NUMBERS)) {
    const write = { s: time, B: bytes, share: percent }[unit];
    assert.equal(write(value), text);
  }
});

test("ticks read the same in the browser and in Python", () => {
  for (const { values, unit, texts } of JSON.parse(process.env.MINIPAR_TICKS)) assert.deepEqual(tickText(values, unit), texts);
});

test("an axis of whole numbers has no half ticks", () => {
  assert.deepEqual(ticks(0, 3, 8, true), [0, 1, 2, 3]);
  assert.deepEqual(labelled([0, 3], false, 8, "", true).map(([, text]) => text), ["0", "1", "2", "3"]);
  assert.deepEqual(labelled([0, 3], false, 6, "").map(([, text]) => text), ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]);
  assert.deepEqual(labelled([3, 6.2], true, 5, "B").map(([, text]) => text), ["1 kB", "10 kB", "100 kB", "1 MB"]);
});

// All that is written on a canvas, in order.
function written(paint) {
  const words = [];
  const ctx = new Proxy({ fillText: (text) => words.push(text), measureText: (text) => ({ width: 6 * text.length }) }, {
    get: (own, name) => own[name] ?? (() => {}),
    set: () => true,
  });
  paint(ctx);
  return words;
}

test("both axes of a curve say what they show, once", () => {
  const series = [{ label: "gpipe", x: [0, 4], y: [1, 2], count: 2, colour: "#000000", dash: [] }];
  const theme = { ink: "#000000", soft: "#555555", line: "#cccccc", dark: false };
  for (const title of ["activations held", ""]) {
    const header = { title, x: "slots", y: "microbatches held" };
    const words = written((ctx) => paintCurves(ctx, { header, series, theme, axes: new CurveAxes(header, series, 700, 200) }));
    for (const name of ["slots", "microbatches held", title].filter(Boolean)) assert.equal(words.filter((w) => w === name).length, 1, name);
  }
});

test("ticks are round, even, and inside the axis", () => {
  for (const [low, high] of [[0, 1], [0.013, 0.0131], [0, 3.3e-6], [5, 4000]]) {
    const at = ticks(low, high, 6);
    assert.ok(at.length >= 2 && at.length <= 13);
    assert.ok(at.every((t) => t >= low - 1e-12 && t <= high + 1e-12));
    const text = tickText(at);
    assert.equal(new Set(text).size, text.length, `${text}`);
  }
});

test("zoom keeps the point under the pointer, and never leaves the run", () => {
  const scale = (w) => new Scale(w[0], w[1], 900);
  const before = [2, 6], pointer = 3;
  const after = zoomed(before, 0.5, pointer, 10);
  assert.ok(Math.abs(scale(before).x(pointer) - scale(after).x(pointer)) < 1e-9);
  assert.deepEqual(zoomed([0, 10], 3, 5, 10), [0, 10]);
  assert.deepEqual(panned([2, 6], -5, 10), [0, 4]);
  assert.deepEqual(panned([2, 6], 50, 10), [6, 10]);
});

const line = (row, start, end, count = 1) => [row, start, end, 0, 0, 0, 0, count, end - start, 0];
const rows = [{ rank: 0, lane: "compute" }, { rank: 1, lane: "compute" }, { rank: 1, lane: "comm" }];

function frame(spans) {
  const view = new DataView(Float32Array.from(spans.flat()).buffer);
  return readFrame({ blocks: [{ ranks: 2, rows, spans: spans.length, labels: [{ name: "F" }] }] }, view)[0];
}

test("the span under the pointer is found in its row, or the nearest within reach", () => {
  const block = frame([line(0, 0, 1), line(0, 2, 3), line(2, 0, 5, 7)]);
  assert.equal(block.spans.length, 3 * COLUMNS);
  assert.equal(spanAt(block, 0, 0.5), 0);
  assert.equal(spanAt(block, 0, 2.5), 1);
  assert.equal(spanAt(block, 0, 1.4), -1);
  assert.equal(spanAt(block, 0, 1.4, 0.5), 0);
  assert.equal(spanAt(block, 1, 0.5, Infinity), -1);
  assert.equal(spanAt(block, 2, 4), 2);
  assert.equal(countOf(block), 9);
});

test("an unaligned buffer from the wire is read all the same", () => {
  const bytes = new Uint8Array(4 * COLUMNS + 3);
  bytes.set(new Uint8Array(Float32Array.from(line(0, 1, 2)).buffer), 3);
  const header = { blocks: [{ ranks: 2, rows, spans: 1, labels: [] }] };
  assert.equal(readFrame(header, new DataView(bytes.buffer, 3))[0].spans[2], 2);
});

test("blocks stand one above the other, and every strip can be hit", () => {
  const layout = layOut([frame([]), frame([])]);
  assert.ok(layout.blocks[0].bottom < layout.blocks[1].top);
  layout.blocks.forEach((block, b) => block.strips.forEach((strip, row) => assert.deepEqual(under(layout, strip.y + strip.h / 2), { block: b, row })));
});

test("a slot that is let go lands after the slots left of it", () => {
  const slot = (start) => ({ start, end: start + 1 });
  const header = { makespan: 4, rows: [[slot(0), slot(1), slot(2), slot(3)]] };
  const box = (i) => slotBox(header, 600, 0, i);
  assert.deepEqual(slotAt(header, 600, box(2).x + 3, box(2).y + 3), { rank: 0, slot: 2 });
  assert.equal(dropAt(header, 600, 0, 0, box(2).x + box(2).w), 2);
  assert.equal(dropAt(header, 600, 0, 3, 0), 0);
  assert.equal(dropAt(header, 600, 0, 1, box(1).x + 5), 1);
});

test("light text means a dark page", () => {
  assert.equal(isLightText("rgb(238, 238, 238)"), true);
  assert.equal(isLightText("rgba(0, 0, 0, 0.87)"), false);
});

test("the parts of a stack lie end to end, and each bar of a pair has a line of its own", () => {
  const bars = [{ rows: [[1, 2], [3, 4]] }, { rows: [[2, 2], [2, 4]] }];
  const { boxes, height } = stackedBars(bars, 2, 8, 400);
  assert.equal(boxes.length, 8);
  for (const bar of [0, 1]) {
    for (const group of [0, 1]) {
      const [first, second] = boxes.filter((b) => b.bar === bar && b.group === group);
      assert.equal(first.x + first.w, second.x);
      assert.ok(second.y + 13 <= height);
    }
  }
  assert.equal(new Set(boxes.map((b) => b.y)).size, 4);
});

test("a message says where it goes or comes from, and only who sends it counts its bytes", () => {
  const span = (label, bytes) => [0, 0, 2, label, -1, -1, bytes, 1, 2, 0];
  const labels = [{ name: "send", axis: "dp", peers: [1] }, { name: "recv", axis: "dp", peers: [3] }];
  const block = { source: "paced", labels, rows: [{ rank: 0, lane: "comm" }], spans: new Float32Array([...span(0, 5e6), ...span(1, 0)]) };
  const [sent, received] = [0, 1].map((index) => describe({ blocks: [block], unit: "s" }, { block: 0, index }).slice(2));
  assert.deepEqual(sent, ["5 MB (counted) over axis dp", "to rank 1"]);
  assert.deepEqual(received, ["over axis dp", "from rank 3"]);
});

test("panels of a mesh stand beside each other where there is room, else below each other", () => {
  assert.equal(new Set(meshLayout(3, 8, 4, 900).places.map((p) => p.y)).size, 1);
  assert.equal(new Set(meshLayout(3, 8, 4, 200).places.map((p) => p.y)).size, 3);
  assert.ok(meshLayout(3, 8, 4, 200).height > meshLayout(3, 8, 4, 900).height);
});

test("the marks of a scale of loads never lie one over the other", () => {
  for (const top of [2, 8, 15.6, 64]) {
    const downs = scaleMarks(top, 112).map(([, y]) => y).sort((a, b) => a - b);
    assert.equal(downs.length, 3);
    assert.ok(downs[1] - downs[0] >= 12 && downs[2] - downs[1] >= 12, `${top}: ${downs}`);
  }
});

test("on a narrow page the bars of the ranks keep their length and stand above the matrix", () => {
  const [title, words] = [330, 165]; // pixels: the bars' title, and what is written beside the longest bar
  for (let width = 340; width < 1600; width += 20) {
    const { bars, matrix, height } = expertsLayout({ experts: 8, ranks: 4 }, width);
    assert.ok(bars.w > words + 80, `${width}: bars of ${bars.w - words}`);
    assert.ok(matrix.y > bars.y + bars.h + 24 || matrix.x > bars.x + title, `${width}: the titles meet`);
    assert.ok(matrix.x + matrix.w <= width && matrix.y + matrix.h < height, `${width}: the matrix is cut off`);
  }
});

test("a caption is broken between words and pushes the pictures down", () => {
  const caption = "each square a rank; ranks of one colour and letter talk to each other over that axis";
  assert.equal(broken(caption, 800).length, 1);
  const narrow = broken(caption, 300);
  assert.equal(narrow.join(" "), caption);
  assert.ok(narrow.length > 1 && narrow.every((line) => line.length <= 45));
  assert.ok(meshLayout(2, 4, 4, 300, narrow.length).places[0].y > meshLayout(2, 4, 4, 300).places[0].y);
});

test("a legend goes on in a new line where the page ends, and the curves give way", () => {
  const labels = ["chunks: 1 (predicted)", "chunks: 2 (predicted)", "chunks: 4 (predicted)"];
  assert.deepEqual(legendLines("thin cuts on a slow link", labels, 900), [0, 0, 0]);
  assert.deepEqual(legendLines("thin cuts on a slow link", labels, 420), [1, 1, 2]);
  const series = labels.map((label) => ({ label, x: [0, 1], y: [0, 1], count: 2 }));
  const top = (width) => new CurveAxes({ x: "", y: "", title: "thin cuts on a slow link" }, series, width, 200).box.y;
  assert.ok(top(400) > top(900));
});

// Numbers as text, as course/views/labels.py writes them: three digits, decimal prefixes.

const TIME = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const PREFIXED = ["B", "B/s", "flop", "flop/s", "tokens/s"];
const LARGE = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

export function three(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1000) return String(value);
  const rounded = Math.abs(value) < 1000 ? Number(value.toPrecision(3)) : Math.round(value);
  const digits = rounded ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded)) + 1e-9)) : 0;
  return rounded.toLocaleString("en-US", {
    minimumFractionDigits: Math.min(digits, 6), maximumFractionDigits: Math.min(digits, 6),
  });
}

function scaled(value, scales) {
  return scales.find(([scale]) => Math.abs(value) >= scale * 0.9995) ?? scales[scales.length - 1];
}

// Seconds, or the picture's own unit of time ("slots").
export function time(value, unit = "s") {
  if (unit !== "s") return `${three(Math.round(value * 1e6) / 1e6)} ${unit}`.trim();
  if (value === 0) return "0 s";
  const [scale, name] = scaled(value, TIME);
  return `${three(value / scale)} ${name}`;
}

export function bytes(value) {
  const [scale, prefix] = scaled(value, LARGE);
  return `${three(value / scale)} ${prefix}B`;
}

export function percent(share) {
  return `${(share * 100).toFixed(1)} %`;
}

// Round steps (1, 2 or 5 times a power of ten) for an axis from low to high with about `count` ticks; whole ones if asked.
export function ticks(low, high, count, whole = false) {
  const raw = Math.max((high - low) / Math.max(1, count), whole ? 1 : 0);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw * 0.9999) ?? 10);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9) + 0; i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

// Text of the ticks of one axis, as labels.tick_texts writes them: one unit, as many decimals as the one that needs most.
export function tickText(values, unit = "s") {
  if (!values.length) return [];
  const [scale, name] = tickScale(Math.max(...values.map(Math.abs)), unit);
  const shown = values.map((v) => v / scale);
  const step = shown.length > 1 ? Math.abs(shown[1] - shown[0]) : Math.abs(shown[0]) || 1;
  let decimals = 0;
  while (decimals < 6 && shown.some((v) => Math.abs(v - Number(v.toFixed(decimals))) > 1e-4 * step)) decimals++;
  const fixed = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return shown.map((v) => `${(Math.abs(v) > 1e-4 * step ? v : 0).toLocaleString("en-US", fixed)} ${name}`.trim());
}

function tickScale(largest, unit) {
  if (unit === "s") return scaled(largest || 1, TIME);
  if (unit === "share") return [0.01, "%"];
  if (!PREFIXED.includes(unit)) return [1, unit];
  const [scale, prefix] = scaled(largest, LARGE);
  return [scale, prefix + unit];
}

// A value of an axis in its unit, as labels.number writes it.
export function quantity(value, unit = "") {
  if (unit === "s") return time(value);
  if (unit === "share") return percent(value);
  if (PREFIXED.includes(unit)) {
    const [scale, prefix] = scaled(value, LARGE);
    return `${three(Number((value / scale).toPrecision(6)))} ${prefix}${unit}`;
  }
  const plain = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
  return `${plain} ${unit}`.trim();
}

export const CAPTION_LINE = 15; // pixels from one line of a caption to the next

// The lines of a caption of 12 pixels in `width` pixels, broken between words.
export function broken(text, width) {
  const most = Math.max(20, Math.floor(width / 6.6)); // letters, on the average
  const lines = [];
  for (const word of text.split(" ")) {
    if (lines.length && lines.at(-1).length + 1 + word.length <= most) lines.push(`${lines.pop()} ${word}`);
    else lines.push(word);
  }
  return lines;
}

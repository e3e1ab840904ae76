// Numbers as text, as course/views/labels.py writes them: three digits, decimal prefixes.

const TIME = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
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

// Round steps (1, 2 or 5 times a power of ten) for an axis from low to high with about `count` ticks.
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw * 0.9999) ?? 10);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

// Text of the ticks of one axis: all in the same unit and with the same number of decimals.
export function tickText(values, unit = "s") {
  if (!values.length) return [];
  const step = values.length > 1 ? values[1] - values[0] : values[0] || 1;
  const [scale, name] = unit === "s" ? scaled(Math.max(...values.map(Math.abs)) || 1, TIME) : [1, unit];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
  return values.map((v) => `${(v / scale).toFixed(Math.min(decimals, 6))} ${name}`.trim());
}

// A value of an axis in its unit, as labels.number writes it.
export function quantity(value, unit = "") {
  if (unit === "s") return time(value);
  if (unit === "share") return percent(value);
  if (["B", "B/s", "flop", "flop/s", "tokens/s"].includes(unit)) {
    const [scale, prefix] = scaled(value, LARGE);
    return `${three(Number((value / scale).toPrecision(6)))} ${prefix}${unit}`;
  }
  const plain = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
  return `${plain} ${unit}`.trim();
}

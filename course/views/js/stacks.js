// Stacked bars, one pair for each group: predicted above counted, under a limit where there is one.

import { FONT, Surface, hatch, swatch } from "./canvas.js";
import { element, frameOf, markDrawn } from "./dom.js";
import { onThemeChange, themeOf } from "./theme.js";

const STACK_LEFT = 62, STACK_RIGHT = 84, STACK_TOP = 34, BAR = 13, PAIR_GAP = 9;

// One rectangle for each part of each bar.
export function stackedBars(bars, groups, top, width) {
  const pair = bars.length * BAR + PAIR_GAP;
  const room = Math.max(10, width - STACK_LEFT - STACK_RIGHT);
  const boxes = [];
  bars.forEach(({ rows }, b) => {
    for (let g = 0; g < groups; g++) {
      let x = STACK_LEFT;
      rows.forEach((row, kind) => {
        const w = (room * row[g]) / (top || 1);
        boxes.push({ bar: b, group: g, kind, x, y: STACK_TOP + g * pair + b * BAR, w });
        x += w;
      });
    }
  });
  return { boxes, pair, room, height: STACK_TOP + groups * pair + 4 };
}

class StacksPicture {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "stacks"));
    this.legend = element("div", "mp-legend", this.bar);
    this.canvas.setAttribute("role", "img");
    this.surface = new Surface(this.canvas, (ctx, w, h, ratio) => this.paint(ctx, w, ratio), (w) => this.layout(w).height);
    this.stops = [onThemeChange(() => this.update())];
    model.on("change:_header", () => this.update());
    this.update();
  }

  layout(width) {
    const { bars = [], groups = [], top = 1 } = this.header;
    return stackedBars(bars, groups.length, top, width);
  }

  update() {
    this.header = this.model.get("_header");
    this.canvas.setAttribute("aria-label", this.header.said ?? "nothing yet");
    this.legend.replaceChildren();
    const { kinds = [], bars = [] } = this.header;
    for (const { label, fill, hatch: lines, ink } of kinds) {
      const key = element("span", "mp-key", this.legend);
      key.append(swatch(fill, lines, ink));
      element("span", "", key, label);
    }
    if (bars.length > 1) element("span", "mp-remark", this.legend, "pale: predicted, full: counted");
    this.surface.invalidate();
  }

  paint(ctx, width, ratio) {
    const { title = "", bars = [], groups = [], kinds = [], totals = [], limit, limitText, top = 1 } = this.header;
    const theme = themeOf(this.root);
    const { boxes, pair, room, height } = this.layout(width);
    ctx.textBaseline = "middle";
    ctx.font = `12px ${FONT}`;
    ctx.fillStyle = theme.soft;
    ctx.textAlign = "left";
    ctx.fillText(bars.length === 1 ? `${title} (${bars[0].source})` : title, 0, 9);
    for (const { bar, kind, x, y, w } of boxes) this.box(ctx, kinds[kind], x, y, w, bars.length > 1 && bar === 0, ratio);
    groups.forEach((group, g) => this.words(ctx, theme, group, totals, g, { pair, room, top, bars }));
    if (limit !== undefined) this.limit(ctx, theme, STACK_LEFT + (room * limit) / top, limitText, height);
    markDrawn(this.root, this.model);
  }

  box(ctx, kind, x, y, w, pale, ratio) {
    ctx.globalAlpha = pale ? 0.5 : 1;
    ctx.fillStyle = kind.fill;
    ctx.fillRect(x, y, w, BAR - 1);
    const lines = hatch(ctx, kind.hatch, kind.ink, ratio);
    if (lines) {
      ctx.fillStyle = lines;
      ctx.fillRect(x, y, w, BAR - 1);
    }
    ctx.globalAlpha = 1;
  }

  words(ctx, theme, group, totals, g, { pair, room, top, bars }) {
    const y = STACK_TOP + g * pair;
    ctx.font = `12px ${FONT}`;
    ctx.fillStyle = theme.ink;
    ctx.textAlign = "right";
    ctx.fillText(group, STACK_LEFT - 8, y + (bars.length * BAR) / 2);
    ctx.textAlign = "left";
    ctx.font = `10px ${FONT}`;
    bars.forEach(({ rows }, b) => {
      const total = rows.reduce((sum, row) => sum + row[g], 0);
      ctx.fillText(totals[b][g], STACK_LEFT + (room * total) / (top || 1) + 4, y + b * BAR + BAR / 2);
    });
  }

  limit(ctx, theme, x, text, height) {
    ctx.strokeStyle = theme.ink;
    ctx.setLineDash([5, 3]);
    ctx.beginPath();
    ctx.moveTo(Math.round(x) + 0.5, STACK_TOP - 4);
    ctx.lineTo(Math.round(x) + 0.5, height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = theme.ink;
    ctx.font = `11px ${FONT}`;
    ctx.textAlign = "center";
    ctx.fillText(text, x, STACK_TOP - 11);
  }

  dispose() {
    this.stops.forEach((stop) => stop());
    this.surface.dispose();
  }
}

function render({ model, el }) {
  const picture = new StacksPicture(model, el);
  return () => picture.dispose();
}

export default { render };

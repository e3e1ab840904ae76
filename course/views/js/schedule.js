// A schedule in the page: slots to drag or to move by keyboard. Python decides; this only asks, and shows the answer.

import { Surface, swatch } from "./canvas.js";
import { element, frameOf, markDrawn } from "./dom.js";
import { ROW_HEIGHT, TOP, dropAt, slotAt, slotBox } from "./schedule-layout.js";
import { paintSchedule } from "./schedule-paint.js";
import { onThemeChange, themeOf } from "./theme.js";

class ScheduleGrid {
  constructor(model, el) {
    this.model = model;
    Object.assign(this, frameOf(el, "schedule"));
    this.legend = element("div", "mp-legend", this.bar);
    this.undo = element("button", "", element("div", "mp-buttons", this.bar), "Undo");
    this.undo.type = "button";
    this.undo.addEventListener("click", () => model.send({ undo: true }));
    this.said = element("div", "mp-said", this.root);
    this.said.setAttribute("role", "status");
    this.bar.after(this.said); // above the slots: a refusal must not hide below the edge of the window
    this.canvas.setAttribute("role", "application");
    this.at = null; // the slot with the cursor
    this.held = null; // the slot being moved: {rank, slot, to}; by mouse also x, the pointer, and grip, how far in it was taken
    this.asked = null; // the move that Python has not answered yet
    this.surface = new Surface(this.canvas, (ctx, w, h, ratio) => this.paint(ctx, w, ratio), () => TOP + this.header.rows.length * ROW_HEIGHT + 4);
    this.stops = [onThemeChange(() => this.update())];
    this.canvas.addEventListener("pointerdown", (e) => this.grab(e));
    this.canvas.addEventListener("pointermove", (e) => this.drag(e));
    this.canvas.addEventListener("pointerup", () => this.drop());
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    model.on("change:_header", () => this.update());
    this.update();
  }

  update() {
    this.header = this.model.get("_header");
    this.held = null;
    if (this.asked) {
      const { rank, slot, to } = this.asked;
      this.at = { rank, slot: this.header.refused ? slot : to }; // the cursor stays with the slot
      this.asked = null;
    }
    if (this.at && !this.header.rows[this.at.rank]?.[this.at.slot]) this.at = null;
    this.legend.replaceChildren();
    for (const kind of this.header.kinds) element("span", "mp-key", this.legend).append(swatch(kind.fill, kind.hatch, kind.ink), kind.label);
    this.undo.disabled = !this.header.moves;
    this.said.textContent = this.header.said;
    this.said.classList.toggle("mp-refused", this.header.refused);
    this.canvas.setAttribute("aria-label", `Schedule of ${this.header.rows.length} ranks. ${this.header.title}. Arrow keys choose a slot, Enter takes it up and puts it down, Escape lets it stay, Delete leaves it out.`);
    this.surface.invalidate();
  }

  paint(ctx, width, ratio) {
    paintSchedule(ctx, { header: this.header, width, ratio, theme: themeOf(this.root), at: this.at, held: this.held });
    markDrawn(this.root, this.model);
  }

  grab(event) {
    const found = slotAt(this.header, this.surface.width, event.offsetX, event.offsetY);
    this.at = found;
    if (found) {
      const box = slotBox(this.header, this.surface.width, found.rank, found.slot);
      this.held = { ...found, to: found.slot, x: event.offsetX, grip: event.offsetX - box.x };
      this.canvas.setPointerCapture(event.pointerId);
    }
    this.surface.invalidate();
  }

  drag(event) {
    this.canvas.style.cursor = slotAt(this.header, this.surface.width, event.offsetX, event.offsetY) ? "grab" : "";
    if (this.held?.x === undefined) return;
    this.held.to = dropAt(this.header, this.surface.width, this.held.rank, this.held.slot, event.offsetX);
    this.held.x = event.offsetX;
    this.surface.invalidate();
  }

  drop() {
    if (!this.held) return;
    const { rank, slot, to } = this.held;
    this.held = null;
    if (to !== slot) {
      this.asked = { rank, slot, to };
      this.model.send(this.asked);
    }
    this.at = { rank, slot };
    this.surface.invalidate();
  }

  key(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (steps[event.key]) this.step(...steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.takeOrPut();
    else if (event.key === "Escape") this.held = null;
    else if (event.key === "Delete" || event.key === "Backspace") this.leaveOut();
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.speak();
    this.surface.invalidate();
  }

  step(down, right) {
    const within = (value, count) => Math.min(count - 1, Math.max(0, value));
    if (this.held) {
      this.held.to = within(this.held.to + right, this.header.rows[this.held.rank].length);
      return;
    }
    const { rank, slot } = this.at ?? { rank: 0, slot: -right };
    const row = within(rank + down, this.header.rows.length);
    this.at = { rank: row, slot: within(slot + right, this.header.rows[row].length) };
  }

  takeOrPut() {
    if (this.held) this.drop();
    else if (this.at) this.held = { ...this.at, to: this.at.slot };
  }

  leaveOut() {
    if (!this.at || this.held) return;
    this.asked = { ...this.at, to: this.at.slot };
    this.model.send({ ...this.asked, delete: true });
  }

  speak() {
    if (!this.at) return;
    const { rank, slot } = this.held ?? this.at;
    const { text } = this.header.rows[rank][slot] ?? {};
    this.spoken.textContent = this.held ? `${text}, held, would stand at slot ${this.held.to}` : `${text}, rank ${rank}, slot ${slot}`;
  }

  dispose() {
    this.stops.forEach((stop) => stop());
    this.surface.dispose();
  }
}

function render({ model, el }) {
  const grid = new ScheduleGrid(model, el);
  return () => grid.dispose();
}

export default { render };

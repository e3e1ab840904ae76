// Tiles in the page, one per rank. The seconds of a wait run on here, so Python sends only changes.

import { element, markDrawn } from "./dom.js";

export function tileText(tile, elapsed) {
  return tile.ticks ? `${tile.text} for ${(tile.seconds + elapsed).toFixed(1)} s` : tile.text + tile.past;
}

class Tiles {
  constructor(model, el) {
    this.model = model;
    this.root = element("div", "mp-view mp-states", el);
    this.grid = element("div", "mp-tiles", this.root);
    this.remark = element("div", "mp-remark", this.root);
    this.spoken = element("div", "mp-spoken", this.root);
    this.spoken.setAttribute("role", "status");
    model.on("change:_header", () => this.update());
    this.update();
    this.timer = setInterval(() => this.tick(), 100);
  }

  update() {
    this.since = performance.now();
    this.tiles = this.model.get("_header").tiles ?? [];
    while (this.grid.children.length > this.tiles.length) this.grid.lastChild.remove();
    while (this.grid.children.length < this.tiles.length) this.addTile();
    this.tiles.forEach((tile, i) => this.fill(this.grid.children[i], tile));
    this.remark.textContent = this.model.get("_header").remark ?? "";
    this.speak();
    this.tick();
    markDrawn(this.root, this.model);
  }

  addTile() {
    const node = element("div", "mp-tile", this.grid);
    for (const part of ["mp-tile-name", "mp-tile-text", "mp-tile-where"]) element("div", part, node);
  }

  fill(node, tile) {
    node.dataset.state = tile.state;
    node.style.setProperty("--mp-tile", tile.colour);
    node.children[0].replaceChildren();
    element("span", "mp-tile-sign", node.children[0], tile.sign).setAttribute("aria-hidden", "true");
    element("span", "", node.children[0], `rank ${tile.rank}`);
    node.children[2].textContent = tile.where;
  }

  // Only what changed, and never the running seconds.
  speak() {
    const now = this.tiles.map((t) => `rank ${t.rank} ${t.text}${t.past}`);
    const news = now.filter((line) => !(this.said ?? []).includes(line));
    if (this.said && news.length) this.spoken.textContent = news.join(", ");
    this.said = now;
  }

  tick() {
    const elapsed = (performance.now() - this.since) / 1000;
    this.tiles.forEach((tile, i) => {
      const node = this.grid.children[i].children[1];
      const text = tileText(tile, elapsed);
      if (node.textContent !== text) node.textContent = text;
    });
  }

  dispose() {
    clearInterval(this.timer);
  }
}

function render({ model, el }) {
  const tiles = new Tiles(model, el);
  return () => tiles.dispose();
}

export default { render };

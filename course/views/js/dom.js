// Small helpers for the page around a canvas.

export function element(tag, className, parent, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  parent.append(node);
  return node;
}

// The frame every view has: keys that JupyterLab leaves alone, a canvas, a tooltip, a line that is read aloud.
export function frameOf(el, name) {
  const root = element("div", `mp-view mp-${name}`, el);
  root.dataset.lmSuppressShortcuts = "true";
  const bar = element("div", "mp-bar", root);
  const holder = element("div", "mp-canvas", root);
  const canvas = element("canvas", "", holder);
  canvas.tabIndex = 0;
  const tip = element("div", "mp-tip", holder);
  tip.hidden = true;
  const spoken = element("div", "mp-spoken", root);
  spoken.setAttribute("aria-live", "polite");
  return { root, bar, holder, canvas, tip, spoken };
}

// Say what was drawn last: tests and screen readers' tools can see it.
export function markDrawn(root, model) {
  root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
  root.dataset.serial = String(model.get("_header").serial ?? 0);
}

export function fillTip(tip, lines) {
  tip.hidden = !lines.length;
  tip.replaceChildren();
  lines.forEach((text, i) => element("div", i ? "" : "mp-tip-name", tip, text));
}

// Beside (x, y) in the canvas, kept inside it.
export function placeTip(tip, x, y, width) {
  const left = Math.min(Math.max(0, x - tip.offsetWidth / 2), Math.max(0, width - tip.offsetWidth));
  tip.style.transform = `translate(${left}px, ${y}px)`;
}

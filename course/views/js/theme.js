// Light or dark, asked of the page itself: JupyterLab, VS Code and Colab all give text a readable colour.

const LIGHT = {
  ink: "#1b1b1b", soft: "#5c5c5c", line: "#d5d5d5", track: "#f1f1f1", accent: "#0b57d0", card: "#ffffff", dark: false,
};
const DARK = {
  ink: "#ececec", soft: "#a9a9a9", line: "#4a4a4a", track: "#2a2a2a", accent: "#8ab4f8", card: "#1e1e1e", dark: true,
};

export function isLightText(cssColour) {
  const rgb = (cssColour.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) > 128;
}

export function themeOf(element) {
  return isLightText(getComputedStyle(element).color) ? DARK : LIGHT;
}

// Calls back when the page changes its theme; returns a function that stops it.
export function onThemeChange(callback) {
  const watcher = new MutationObserver(callback);
  const options = { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light", "theme"] };
  for (const node of [document.documentElement, document.body]) watcher.observe(node, options);
  return () => watcher.disconnect();
}

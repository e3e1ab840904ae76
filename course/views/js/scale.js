// From a number between 0 and 1 to a colour of the header's scale, and text colours that stay readable on it.

export function parseColour(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

export function rampOf(stops) {
  const colours = stops.map(parseColour);
  return (share) => {
    const at = Math.min(1, Math.max(0, share)) * (colours.length - 1);
    const low = Math.min(colours.length - 2, Math.floor(at));
    return colours[low].map((c, i) => Math.round(c + (colours[low + 1][i] - c) * (at - low)));
  };
}

export function cssOf([r, g, b]) {
  return `rgb(${r}, ${g}, ${b})`;
}

export function inkOn([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 120 ? "#111111" : "#ffffff";
}

// Deep colours are lightened where the page is dark.
export function onTheme(hex, theme) {
  return theme.dark ? cssOf(parseColour(hex).map((c) => Math.round(c + (255 - c) * 0.35))) : hex;
}

// How figures and tokens are written.

export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
export const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(2)}\u00a0s`;
export const count = (number, one, more = `${one}s`) => `${number.toLocaleString("en")}\u00a0${number === 1 ? one : more}`;
export const times = (ratio) => (ratio < 9.95 ? ratio.toFixed(1) : Math.round(ratio).toString());

const END = "end of the text";

// A token or several on one line: breaks are seen, spaces around words are not. Special tokens have no text.
export const visible = (text) => (text ? text.replaceAll("\n", "⏎").replace(/^ /, "").replace(/ $/, "␣") || "␣" : END);

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

// The draft tree of a round as a drawing: from the left to the right, long chains folded into one box.

import { drawn } from "../dom.js";
import { percent, visible } from "../wording.js";

const LETTER = 7.3; // pixels of the drawing's font
const HEIGHT = 26;
const ROW = 36;
const GAP = 26;
const START = 22;
const PAD = 9;
const FOLDED = 3; // nodes of a chain, from which on it is one box
const SIBLINGS = 3; // rejected ends of branches side by side, beyond which the others are one box
const LONGEST = { node: 16, chain: 30 }; // letters in a box

// Returns the boxes of a draft: nodes, chains of nodes, and last the model's own token.
export function boxesOf({ texts, parents, weights, path, bonus }, fold) {
  const kept = new Set(path);
  const children = texts.map(() => []);
  const roots = [];
  parents.forEach((parent, node) => (parent < 0 ? roots : children[parent]).push(node));
  const last = { text: bonus, kind: "own", nodes: [], weight: null, below: [] };
  const box = (node) => {
    const nodes = [node];
    const chain = () => {
      const end = nodes.at(-1);
      return end !== path.at(-1) && children[end].length === 1 && kept.has(children[end][0]) === kept.has(node);
    };
    while (fold && chain()) nodes.push(children[nodes.at(-1)][0]);
    if (nodes.length < FOLDED) nodes.splice(1);
    const end = nodes.at(-1);
    const below = children[end].map(box);
    if (end === path.at(-1)) below.push(last);
    const text = nodes.map((each) => texts[each]).join("");
    return { text, kind: kept.has(node) ? "kept" : "lost", nodes, weight: weights[end], below: arranged(below, fold) };
  };
  const below = roots.map(box);
  if (!path.length) below.push(last);
  return arranged(below, fold);
}

export const canFold = (draft) => flatten(boxesOf(draft, true)).some((box) => box.nodes.length > 1);

// Puts the path to the model's own token on top, and the least likely of many ends of branches into one box.
function arranged(boxes, fold) {
  const ordered = [...boxes].sort((a, b) => (a.kind === "lost") - (b.kind === "lost"));
  const ends = ordered.filter((each) => each.kind === "lost" && each.nodes.length === 1 && !each.below.length);
  if (!fold || ends.length <= SIBLINGS + 1) return ordered;
  const hidden = ends.sort((a, b) => b.weight - a.weight).slice(SIBLINGS);
  const text = hidden.map((each) => visible(each.text)).join(", ");
  const more = { text, kind: "lost", several: true, nodes: hidden.flatMap((each) => each.nodes), weight: hidden[0].weight, below: [] };
  return [...ordered.filter((each) => !hidden.includes(each)), more];
}

const flatten = (boxes) => boxes.flatMap((box) => [box, ...flatten(box.below)]);

// Draws a round at one of its steps: "draft", "verify" or "accept".
export function drawTree(draft, { fold, phase, label, onUnfold }) {
  const boxes = boxesOf(draft, fold);
  const shown = (some) => (phase === "accept" ? some : some.filter((box) => box.kind !== "own"));
  const size = { width: START, rows: 0 };
  const place = (box, x) => {
    const written = box.several ? `${box.nodes.length} others` : visible(box.text);
    const most = box.nodes.length > 1 ? LONGEST.chain : LONGEST.node;
    box.label = written.length > most ? `${written.slice(0, most - 1)}…` : written;
    box.badge = box.nodes.length > 1 && !box.several ? ` ×${box.nodes.length}` : "";
    box.x = x;
    box.width = Math.max(30, (box.label.length + box.badge.length) * LETTER + 2 * PAD);
    size.width = Math.max(size.width, x + box.width);
    const below = shown(box.below);
    below.forEach((each) => place(each, x + box.width + GAP));
    box.row = below.length ? below[0].row : size.rows++;
  };
  shown(boxes).forEach((box) => place(box, START + GAP));
  const svg = drawn("svg", { width: size.width + 2, height: Math.max(1, size.rows) * ROW, role: "img", "aria-label": label, class: phase });
  const [edges, nodes] = [drawn("g"), drawn("g")];
  const middle = (row) => row * ROW + HEIGHT / 2 + 2;
  const add = (box, x, y, depth) => {
    const bend = (x + box.x) / 2;
    edges.append(drawn("path", { class: `edge ${box.kind}`, d: `M${x} ${y}C${bend} ${y} ${bend} ${middle(box.row)} ${box.x} ${middle(box.row)}` }));
    nodes.append(drawBox(box, middle(box.row), depth, onUnfold));
    for (const each of shown(box.below)) add(each, box.x + box.width, middle(box.row), depth + Math.max(1, box.nodes.length));
  };
  for (const box of shown(boxes)) add(box, START - 6, middle(0), 1);
  svg.append(edges, drawn("circle", { cx: START - 12, cy: middle(0), r: 5, class: "root" }), nodes);
  return svg;
}

function drawBox(box, middle, depth, onUnfold) {
  const text = drawn("text", { x: box.x + PAD, y: middle + 4 }, box.label);
  if (box.badge) text.append(drawn("tspan", { class: "badge" }, box.badge));
  const rect = drawn("rect", { x: box.x, y: middle - HEIGHT / 2, width: box.width, height: HEIGHT, rx: 7 });
  const group = drawn("g", { class: `node ${box.kind}${box.nodes.length > 1 ? " chain" : ""}`, "data-depth": Math.min(depth, 12), "data-nodes": box.nodes.length }, drawn("title", {}, titleOf(box)), rect, text);
  if (box.nodes.length > 1) group.addEventListener("click", onUnfold);
  return group;
}

function titleOf({ text, kind, weight, nodes, several }) {
  if (several) return `“${text}”: rejected, expected ${percent(weight)} at most; click to unfold`;
  if (kind === "own") return `“${visible(text)}”: the model’s own word`;
  const size = nodes.length > 1 ? `, ${nodes.length} tokens; click to unfold` : "";
  return `“${visible(text)}”: ${kind === "kept" ? "accepted" : "rejected"}, expected ${percent(weight)}${size}`;
}

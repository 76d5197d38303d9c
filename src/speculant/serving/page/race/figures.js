// Small plots of the runs that are shown: speed, tokens per pass, acceptance by depth.

import { byId, drawn, element, term } from "../dom.js";
import { percent } from "../wording.js";

const SHOWN = 400; // rounds of a plot
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 236, 10, 104];

export function showFigures(runs) {
  const curves = (name) => runs.map(({ method, rounds }) => ({ method, values: rounds.map((round) => round.total).filter((total) => total.rounds).map((total) => total[name]) }));
  const total = (runs.find((run) => run.method === "drafts") || runs[0])?.rounds.at(-1)?.total;
  const shares = total ? total.offered_by_depth.map((offered, depth) => total.accepted_by_depth[depth] / offered) : [];
  byId("plots").replaceChildren(
    lines("Tokens per second", curves("tokens_per_second"), 0),
    lines("Tokens per pass", curves("mat"), 2, term("MAT", "term-mat")),
    bars("Acceptance by depth", shares, term("What is that?", "term-depth")),
  );
}

function figure(name, value, axis, marks, explained) {
  const svg = drawn("svg", { viewBox: "0 0 240 122", role: "img", "aria-label": `${name}: ${value || "nothing yet"}` },
    drawn("path", { class: "axis", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` }),
    ...[[axis.top, TOP + 5], ["0", BOTTOM]].map(([text, y]) => drawn("text", { x: LEFT - 5, y, "text-anchor": "end" }, text)),
    drawn("text", { x: RIGHT, y: 119, "text-anchor": "end" }, axis.bottom), ...marks);
  const caption = element("figcaption", {}, element("strong", {}, name), element("span", {}, value || "nothing yet"));
  if (explained) caption.append(explained);
  return element("figure", {}, caption, svg);
}

function lines(name, curves, digits, explained) {
  const cut = curves.map((each) => ({ ...each, values: each.values.slice(-SHOWN) })).filter((each) => each.values.length);
  const most = Math.max(1e-9, ...cut.flatMap((each) => each.values));
  const marks = cut.map(({ method, values }) => {
    const x = (place) => LEFT + 2 + ((RIGHT - LEFT - 2) * place) / Math.max(1, values.length - 1);
    const y = (value) => BOTTOM - ((BOTTOM - TOP) * value) / most;
    return drawn("polyline", { class: `curve ${method}`, points: values.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ") });
  });
  const value = cut.map(({ method, values }) => `${values.at(-1).toFixed(digits)}${cut.length > 1 ? (method === "plain" ? " without drafts" : " with") : ""}`).join(", ");
  return figure(name, value, { top: cut.length ? most.toFixed(most < 10 ? 1 : 0) : "", bottom: "rounds" }, marks, explained);
}

function bars(name, shares, explained) {
  const width = Math.min(24, (RIGHT - LEFT - 4) / Math.max(1, shares.length));
  const height = (share) => (BOTTOM - TOP) * share;
  const marks = shares.map((share, depth) => drawn("rect", { class: "column", x: LEFT + 4 + depth * width, y: BOTTOM - height(share), width: width * 0.72, height: height(share), rx: 1.5 }, drawn("title", {}, `guess ${depth + 1}: ${percent(share)}`)));
  const value = shares.slice(0, 3).map(percent).join(", ") + (shares.length > 3 ? ", …" : "");
  return figure(name, value, { top: "100\u00a0%", bottom: "first, second, third … guess" }, marks, explained);
}

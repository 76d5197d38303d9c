"use strict";

const EXAMPLES = [
  "Once upon a time there was a little girl named Lily. She loved to play outside",
  "Once upon a time, in a big forest, there lived a small rabbit",
  "Tom had a red car. He liked to play with",
];
const NAMES = { drafts: "With drafts", plain: "Plain" };
const SHOWN = 400; // rounds of a plot
const WARM_UP = { prompt: "The weather was", max_tokens: 64, temperature: 1, chat: false }; // no example: it is learned
const RACE = ["plain", "drafts", "plain"]; // drafts only once: after that the memory knows the text
const byId = (id) => document.getElementById(id);
const page = { runs: [], warm: false, server: null, stopping: null, key: sessionStorage.getItem("speculant-key") || "" };

function element(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

function drawn(name, attributes, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

function showError(text) {
  byId("error").hidden = !text;
  byId("error-text").textContent = text || "";
}

async function ask(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (page.key) headers.Authorization = `Bearer ${page.key}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  if (answer.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
    if (!page.key) throw new Error("Enter the API key first.");
  }
  const body = await answer.json().catch(() => null);
  throw new Error(body?.error?.message || `The server answered with status ${answer.status}.`);
}

// The server and its memory

async function refresh() {
  const first = !page.server;
  page.server = await (await ask("/page/state")).json();
  const { model, method, version, chat, max_tokens, memory } = page.server;
  byId("key-form").hidden = true;
  byId("server").textContent = `${model}, method ${method}, version ${version}`;
  if (first) {
    byId("chat-label").hidden = !chat;
    byId("chat").checked = chat && model !== "bundled";
    byId("max_tokens").max = max_tokens;
  }
  showMemory(memory);
}

function showMemory({ bytes, limit, scope, drafts, hits, contexts }) {
  const whose = scope === "key" ? " of this key" : "";
  const rows = [
    [`Size${whose}`, bytes ? `${(bytes / 2 ** 20).toFixed(1)} of at most ${limit / 2 ** 20} MB` : "none"],
    ["Drafts verified", drafts.toLocaleString("en")],
    ["First token accepted", drafts ? `${hits.toLocaleString("en")}, ${percent(hits / drafts)}` : "0"],
  ];
  byId("memory").replaceChildren(...rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  if (!contexts) {
    const why = scope === "key" ? "Memories are kept apart by key, so only sizes are shown." : "Its contexts are not shown.";
    return byId("contexts").replaceChildren(element("p", { class: "hint" }, why));
  }
  if (!contexts.length) return byId("contexts").replaceChildren(element("p", { class: "hint" }, "Nothing learned yet."));
  const heads = ["Context", "Uses, about", "Followed by"].map((text) => element("th", { scope: "col" }, text));
  const lines = contexts.map(({ text, uses, following }) => {
    const after = following.map((each) => element("span", {}, element("code", {}, visible(each.text)), ` ${percent(each.share)}`));
    const cells = [[element("code", {}, visible(text))], [uses.toLocaleString("en")], after];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, ...cell)));
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
  byId("contexts").replaceChildren(table);
}

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const visible = (text) => text.replaceAll("\n", "⏎").replace(/^ /, "").replace(/ $/, "␣") || "␣";

// Texts

async function generate(method, body, signal) {
  const run = { method, rounds: [], lane: addLane(method) };
  page.runs.push(run);
  await decode(method, body, signal, (event) => {
    run.rounds.push(event);
    addRound(run, event);
    schedule();
  });
  return run;
}

async function decode(method, body, signal, take) {
  let done = false;
  const answer = await ask("/page/generate", { method: "POST", body: JSON.stringify({ ...body, method }), signal });
  for await (const event of events(answer.body)) {
    if (event.error) throw new Error(event.error.message);
    if (event.type === "round") take(event);
    else if (event.type === "end") done = true;
  }
  if (!done) throw new Error("The connection ended before the text did.");
}

// The first rounds of a server try sizes of drafts and load code, which says nothing of later ones. Plain decoding runs
// before and after, so that a machine that grows slower or faster favors neither; its time is the median, their mean.
async function race(body, signal) {
  if (!page.warm) {
    byId("status").textContent = "Warming up";
    const most = Math.min(WARM_UP.max_tokens, page.server.max_tokens);
    for (const method of ["drafts", "plain", "drafts"]) await decode(method, { ...WARM_UP, max_tokens: most }, signal, () => {});
    page.warm = true;
  }
  const met = [];
  for (const [place, method] of RACE.entries()) {
    byId("status").textContent = `Generating, ${place + 1} of ${RACE.length}`;
    if (met.some((run) => run.method === method)) {
      const run = { method, rounds: [] };
      await decode(method, body, signal, (event) => run.rounds.push(event));
      met.push(run);
    } else met.push(await generate(method, body, signal));
  }
  return met;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

function addLane(method) {
  const figures = element("p", {}, "waiting");
  const text = element("div", { class: "text", tabindex: "0", role: "region", "aria-label": `Text, ${NAMES[method]}` });
  text.append(element("span", { class: "prompt" }, byId("prompt").value + (byId("chat").checked ? "\n\n" : "")));
  byId("lanes").append(element("div", { class: "lane" }, element("h3", {}, NAMES[method]), figures, text));
  return { figures, text };
}

function addRound({ lane }, { tokens, total }) {
  for (const { text, source } of tokens) if (text) lane.text.append(element("span", { class: source }, text));
  lane.text.scrollTop = lane.text.scrollHeight;
  lane.figures.textContent = figures(total);
}

const seconds = (total) => `${(total.milliseconds / 1000).toFixed(2)} s`;
const figures = (total) =>
  `${total.tokens} tokens in ${seconds(total)}, ${total.tokens_per_second.toFixed(1)} tokens/s, ${total.mat.toFixed(2)} tokens per pass`;
const textOf = (run) => run.rounds.flatMap((round) => round.tokens.map((token) => token.text)).join("");

async function submit(event) {
  event.preventDefault();
  if (page.stopping) return;
  const method = document.querySelector("input[name=method]:checked").value;
  const number = (id) => Number(byId(id).value);
  const body = { prompt: byId("prompt").value, chat: byId("chat").checked, max_tokens: number("max_tokens"), temperature: number("temperature"), seed: number("seed") };
  page.runs = [];
  byId("lanes").replaceChildren();
  byId("race-note").hidden = method !== "race";
  byId("replay").hidden = true;
  showError("");
  busy(new AbortController());
  const { signal } = page.stopping;
  try {
    byId("status").textContent = "Generating";
    if (method === "race") byId("status").textContent = verdict(await race(body, signal));
    else byId("status").textContent = `Done: ${figures((await generate(method, body, signal)).rounds.at(-1).total)}`;
    byId("replay").hidden = method !== "race";
  } catch (error) {
    byId("status").textContent = signal.aborted ? "Stopped" : "Failed";
    if (!signal.aborted) showError(error.message);
  }
  busy(null);
  redraw(true);
  refresh().catch((error) => showError(error.message));
}

function verdict(met) {
  const [a, b] = ["drafts", "plain"].map((method) => {
    const times = met.filter((run) => run.method === method).map((run) => run.rounds.at(-1).total.milliseconds);
    return { milliseconds: median(times) };
  });
  const same = new Set(met.map(textOf)).size === 1 ? "the texts are equal" : "the texts differ";
  return `Drafts ${seconds(a)}, plain ${seconds(b)}: drafts are ${(b.milliseconds / a.milliseconds).toFixed(2)} times as fast; ${same}`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

function busy(controller) {
  page.stopping = controller;
  byId("stop").disabled = !controller;
  byId("generate").disabled = Boolean(controller);
  byId("lanes").setAttribute("aria-busy", String(Boolean(controller)));
}

function replay() {
  busy(new AbortController());
  const { signal } = page.stopping;
  const began = performance.now();
  byId("lanes").replaceChildren();
  for (const run of page.runs) Object.assign(run, { lane: addLane(run.method), next: 0 });
  const frame = () => {
    const now = performance.now() - began;
    let left = false;
    for (const run of page.runs) {
      while (run.next < run.rounds.length && run.rounds[run.next].total.milliseconds <= now) addRound(run, run.rounds[run.next++]);
      left ||= run.next < run.rounds.length;
    }
    if (left && !signal.aborted) requestAnimationFrame(frame);
    else busy(null);
  };
  frame();
}

// Drawings

let scheduled = false;
function schedule() {
  if (!scheduled) requestAnimationFrame(() => redraw(true));
  scheduled = true;
}

function redraw(latest) {
  scheduled = false;
  const run = page.runs.find((each) => each.method === "drafts") || page.runs[0];
  const rounds = run ? run.rounds.filter((round) => round.drafts.length) : [];
  const slider = byId("round");
  slider.disabled = !rounds.length;
  slider.max = Math.max(1, rounds.length);
  if (latest) slider.value = slider.max;
  const number = Number(slider.value);
  if (rounds.length) showTree(rounds[number - 1], number, rounds.length);
  else if (latest) byId("tree").replaceChildren();
  if (latest) showPlots();
}

function showTree({ drafts, milliseconds }, number, count) {
  const { texts, parents, weights, path, bonus } = drafts[0];
  const kept = new Set(path);
  const words = path.map((node) => texts[node]).join("");
  const depths = parents.map(() => 1);
  parents.forEach((parent, node) => parent >= 0 && (depths[node] = depths[parent] + 1));
  byId("round-text").textContent = `${number} of ${count}: ${path.length} of ${texts.length} nodes accepted, ${milliseconds.toFixed(1)} ms`;
  byId("round").setAttribute("aria-valuetext", byId("round-text").textContent);
  // The bonus token hangs below the last accepted node; rows are given to leaves from the top, accepted nodes first.
  const all = [...parents, path.length ? path.at(-1) : -1];
  const children = new Map();
  all.forEach((parent, node) => children.set(parent, [...(children.get(parent) || []), node]));
  const last = texts.length;
  const first = (node) => kept.has(node) || node === last;
  const rows = [];
  let row = 0;
  const place = (node) => {
    const below = (children.get(node) || []).sort((a, b) => first(b) - first(a) || a - b);
    below.forEach(place);
    rows[node + 1] = below.length ? rows[below[0] + 1] : row++;
  };
  place(-1);
  const [width, height, gap] = [72, 22, 22];
  const x = (node) => (node < 0 ? 0 : (node === last ? path.length + 1 : depths[node]) * (width + gap) - width - gap + 24);
  const y = (node) => rows[node + 1] * 30 + 2;
  const label = `Round ${number}: ${texts.length} drafted nodes, ${path.length} accepted${words ? `: “${words.trim()}”` : ""}; then the target's own token “${bonus.trim()}”`;
  const size = [Math.max(...depths, path.length + 1) * (width + gap) + 4, Math.max(1, row) * 30];
  const svg = drawn("svg", { width: size[0], height: size[1], role: "img", "aria-label": label });
  all.forEach((parent, node) => {
    const [x0, y0, x1, y1] = [parent < 0 ? 10 : x(parent) + width, y(parent) + height / 2, x(node), y(node) + height / 2];
    const bend = (x0 + x1) / 2;
    svg.append(drawn("path", { class: first(node) ? "edge kept" : "edge", d: `M${x0} ${y0}C${bend} ${y0} ${bend} ${y1} ${x1} ${y1}` }));
  });
  svg.append(drawn("circle", { cx: 6, cy: y(-1) + height / 2, r: 5, fill: "currentColor" }));
  all.forEach((_, node) => {
    const text = visible(node === last ? bonus : texts[node]);
    const name = node === last ? "node last" : kept.has(node) ? "node kept" : "node";
    const title = node === last ? "token of the target" : `${kept.has(node) ? "accepted" : "rejected"}, expected ${percent(weights[node])}`;
    svg.append(drawn("g", { class: name }, drawn("title", {}, `${text}: ${title}`),
      drawn("rect", { x: x(node), y: y(node), width, height, rx: 5 }),
      drawn("text", { x: x(node) + width / 2, y: y(node) + 15, "text-anchor": "middle" }, text.length > 9 ? `${text.slice(0, 8)}…` : text)));
  });
  byId("tree").replaceChildren(svg);
}

function showPlots() {
  const curves = (name) => page.runs.map((run) => ({ method: run.method, values: run.rounds.map((round) => round.total).filter((total) => total.rounds).map((total) => total[name]) }));
  const total = (page.runs.find((run) => run.method === "drafts") || page.runs[0])?.rounds.at(-1)?.total;
  const shares = total ? total.offered_by_depth.map((offered, depth) => total.accepted_by_depth[depth] / offered) : [];
  byId("plots").replaceChildren(lines("Tokens/s", curves("tokens_per_second"), 1), lines("Tokens per pass", curves("mat"), 2), bars("Acceptance by depth", shares));
}

function figure(name, value, top, bottom, marks) {
  const svg = drawn("svg", { viewBox: "0 0 170 130", role: "img", "aria-label": value ? `${name}: ${value}` : `${name}: nothing yet` },
    drawn("path", { class: "axis", d: "M30 6V112H166", fill: "none" }),
    ...[[top, 14], ["0", 114]].map(([text, y]) => drawn("text", { x: 26, y, "text-anchor": "end" }, text)),
    drawn("text", { x: 166, y: 127, "text-anchor": "end" }, bottom), ...marks);
  return element("figure", {}, element("figcaption", {}, value ? `${name}: ${value}` : name), svg);
}

function lines(name, curves, digits) {
  const drawnCurves = curves.map((each) => ({ ...each, values: each.values.slice(-SHOWN) })).filter((each) => each.values.length);
  const most = Math.max(1e-9, ...drawnCurves.flatMap((each) => each.values));
  const marks = drawnCurves.map(({ method, values }) => {
    const points = values.map((value, place) => `${(30 + (136 * place) / Math.max(1, values.length - 1)).toFixed(1)},${(112 - (102 * value) / most).toFixed(1)}`);
    return drawn("polyline", { class: `curve ${method}`, points: points.join(" ") });
  });
  const value = drawnCurves.map(({ method, values }) => `${values.at(-1).toFixed(digits)}${curves.length > 1 ? ` ${method}` : ""}`).join(", ");
  return figure(name, value, drawnCurves.length ? most.toFixed(most < 10 ? 1 : 0) : "", "rounds", marks);
}

function bars(name, shares) {
  const width = Math.min(20, 132 / Math.max(1, shares.length));
  const marks = shares.map((share, depth) => drawn("rect", { class: "bar", x: 33 + depth * width, y: 112 - 102 * share, width: width * 0.75, height: 102 * share }, drawn("title", {}, `depth ${depth + 1}: ${percent(share)}`)));
  return figure(name, shares.slice(0, 3).map(percent).join(", ") + (shares.length > 3 ? ", …" : ""), "1", "depth", marks);
}

// Controls

for (const text of EXAMPLES) {
  const button = element("button", { type: "button" }, text);
  button.addEventListener("click", () => (byId("prompt").value = text));
  byId("examples").append(button);
}
byId("prompt").value = EXAMPLES[0];
byId("form").addEventListener("submit", submit);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
byId("stop").addEventListener("click", () => page.stopping?.abort());
byId("replay").addEventListener("click", replay);
byId("round").addEventListener("input", () => redraw(false));
byId("dismiss").addEventListener("click", () => showError(""));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  page.key = byId("key").value;
  sessionStorage.setItem("speculant-key", page.key);
  showError("");
  refresh().catch((error) => showError(error.message));
});
showPlots();
refresh().catch((error) => showError(page.key ? error.message : ""));

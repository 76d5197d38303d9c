// The view of the race: what is asked for, the lanes while it runs, the verdict, and what can be looked at then.

import { byId, button, element } from "../dom.js";
import { promptsFor } from "../examples.js";
import { count, percent, seconds, times } from "../wording.js";
import { showFigures } from "./figures.js";
import { Lane, linkScrolling } from "./lane.js";
import { decode, race } from "./measure.js";
import { showMemory } from "./memory.js";
import { Playback } from "./playback.js";
import { Rounds } from "./rounds.js";

const FASTER = 1.05; // times as fast, below which a clock cannot tell
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class RaceView {
  constructor({ showError, refresh }) {
    Object.assign(this, { showError, refresh, state: null, stopping: null, runs: {}, lanes: {}, results: [] });
    this.playback = new Playback();
    this.rounds = new Rounds((run, number) => this.mark(run, number));
    byId("race-form").addEventListener("submit", (event) => this.submit(event));
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("race-form").requestSubmit();
    });
    byId("template").addEventListener("change", () => this.askFor());
    byId("race-settings").addEventListener("invalid", () => byId("race-settings").showPopover(), true); // where it is said
    byId("stop").addEventListener("click", () => this.stopping?.abort());
  }

  // Takes what the server says of itself.
  update(state) {
    if (!this.state) {
      const examples = promptsFor(state.model);
      byId("examples").replaceChildren(...Object.entries(examples).map(([name, text]) => button(name, () => (byId("prompt").value = text))));
      byId("prompt").value ||= Object.values(examples)[0];
      byId("template-label").hidden = !state.chat;
      byId("template").checked = state.chat && state.model !== "bundled";
      this.askFor();
      byId("max_tokens").max = state.max_tokens;
      byId("max_tokens").value = Math.min(160, state.max_tokens);
    }
    this.state = state;
    byId("memory-panel").hidden = false;
    showMemory(state.memory);
  }

  // Says what the prompt is: the beginning of a text, or a message.
  askFor() {
    byId("prompt-label").textContent = byId("template").checked ? "What should the model answer?" : "How should the text begin?";
  }

  async submit(event) {
    event.preventDefault();
    if (this.stopping) return;
    const number = (id) => Number(byId(id).value);
    const body = { prompt: byId("prompt").value, chat: byId("template").checked, max_tokens: number("max_tokens"), temperature: number("temperature"), seed: number("seed") };
    const method = document.querySelector("input[name=method]:checked").value;
    this.prepare(method, body);
    const { signal } = this.stopping;
    try {
      if (method === "race") await this.race(body, signal);
      else await this.alone(method, body, signal);
    } catch (error) {
      this.say("");
      byId("headline").textContent = `The ${method === "race" ? "race" : "text"} was ${signal.aborted ? "stopped" : "not finished"}`;
      for (const lane of Object.values(this.lanes)) if (!this.runs[lane.method]?.done) lane.fail(signal.aborted ? "stopped" : "failed");
      if (!signal.aborted) this.showError(error.message);
      this.show(Object.values(this.runs).at(-1));
    }
    this.busy(null);
    this.refresh();
  }

  prepare(method, body) {
    this.showError("");
    this.playback.pause();
    this.runs = {};
    this.rounds.load(null);
    const prompt = body.prompt + (body.chat ? "\n\n" : "");
    const lanes = (method === "race" ? ["plain", "drafts"] : [method]).map((each) => new Lane(each, prompt, (name, round) => this.pick(name, round)));
    this.lanes = Object.fromEntries(lanes.map((lane) => [lane.method, lane]));
    linkScrolling(lanes);
    byId("lanes").replaceChildren(...lanes.map((lane) => lane.box));
    byId("headline").textContent = method === "race" ? "The race is on" : "Decoding";
    for (const id of ["outcomes", "playback"]) byId(id).hidden = true;
    byId("steps").hidden = true;
    byId("result").hidden = false;
    this.busy(new AbortController());
    byId("result").scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
  }

  async race(body, signal) {
    const onStage = (text, share) => {
      this.say(text);
      byId("progress").value = share;
    };
    const { plain, results } = await race(body, this.state?.max_tokens ?? 64, { signal, onStage, onRound: (run) => this.live(run) });
    this.runs.plain = plain;
    this.results = results;
    this.say("");
    byId("outcomes").replaceChildren(...results.map((result) => this.outcome(result)));
    byId("outcomes").hidden = results.length < 2;
    byId("playback").hidden = false;
    this.choose(results[0]);
    if (!calm.matches) this.playback.play();
  }

  async alone(method, body, signal) {
    const run = await decode(method, body, signal, (each) => this.live(each));
    const { total } = run.rounds.at(-1);
    byId("headline").textContent = `${total.tokens_per_second.toFixed(0)} tokens per second`;
    this.say(`Done: ${count(total.tokens, "token")} in ${seconds(total.milliseconds)}, ${total.mat.toFixed(2)} tokens per pass.`);
    this.lanes[method].show(run, run.rounds.length);
    this.show(run);
  }

  live(run) {
    this.runs[run.method] = run;
    this.lanes[run.method].show(run, run.rounds.length);
    this.lanes[run.method].text.scrollTop = this.lanes[run.method].text.scrollHeight;
  }

  // A result of the race as a button that shows its run beside plain decoding's.
  outcome(result) {
    const name = result.known === null ? "This text" : result.isKnown ? "A known text" : "A new text";
    const made = button("", () => this.choose(result, true), { class: "outcome" });
    made.append(element("span", { class: "ratio" }, `${times(result.ratio)}×`), element("span", {}, name));
    result.button = made;
    return made;
  }

  choose(result, again = false) {
    for (const each of this.results) each.button.setAttribute("aria-pressed", String(each === result));
    const pace = result.ratio < FASTER ? "Not faster this time" : `${times(result.ratio)} times as fast`;
    byId("headline").textContent = `${pace}, ${result.same ? "the same text" : "but the texts differ"}`;
    this.say(tell(result, this.results));
    this.lanes.drafts.clear();
    this.runs.drafts = result.run;
    this.playback.load([{ lane: this.lanes.plain, run: this.runs.plain }, { lane: this.lanes.drafts, run: result.run }]);
    this.show(result.run);
    if (again && !calm.matches) this.playback.play();
  }

  // Shows what there is to see of a run below its text.
  show(run) {
    if (!run?.rounds.length) return;
    this.rounds.load(run);
    byId("figures").hidden = false;
    showFigures(Object.values(this.runs));
  }

  pick(method, number) {
    this.playback.pause();
    this.rounds.halt();
    if (this.rounds.run !== this.runs[method]) this.rounds.load(this.runs[method]);
    this.rounds.show(number);
  }

  mark(run, number) {
    for (const lane of Object.values(this.lanes)) lane.mark(this.runs[lane.method] === run ? number : null);
  }

  say(text) {
    byId("status").textContent = text;
  }

  busy(controller) {
    this.stopping = controller;
    byId("stop").hidden = !controller;
    byId("start").disabled = Boolean(controller);
    byId("progress").hidden = !controller;
    byId("progress").value = 0;
    byId("lanes").setAttribute("aria-busy", String(Boolean(controller)));
  }
}

function tell({ run, plain, drafts, known, isKnown, same }, results) {
  const passes = (each) => count(each.rounds + 1, "pass", "passes");
  const { total } = run.rounds.at(-1);
  const what = `${seconds(drafts)} instead of ${seconds(plain)}: ${passes(total)} of the model for ${count(total.tokens, "token")}.`;
  const differ = same ? "" : " Rounding made two words equally likely somewhere; in float32 the texts are equal.";
  if (known === null) return what + differ;
  if (!isKnown) return `A new text: the memory had seen ${percent(known)} of it. ${what}${differ}`;
  return `A text the memory knew${results.length > 1 ? ", since it was decoded a moment ago" : `: it had seen ${percent(known)} of it`}. ${what}${differ}`;
}

// A text as it was decoded: each token by its source, in the rounds that made it.

import { element } from "../dom.js";
import { count, seconds } from "../wording.js";

export const NAMES = { drafts: "With drafts", plain: "Without drafts" };
const MARGIN = 28; // pixels between the text's end and the lane's

export class Lane {
  constructor(method, prompt, onPick) {
    this.method = method;
    this.shown = 0; // rounds
    this.marked = null; // the round that is looked at
    this.figures = element("p", { class: "figures" }, "waiting");
    this.bar = element("div", { class: "bar-done" });
    this.end = element("span", { class: "cursor" });
    this.text = element("div", { class: "text", tabindex: "0", role: "region", "aria-label": `Text, ${NAMES[method]}`, "aria-describedby": "legend-hint" });
    this.prompt = element("span", { class: "prompt" }, prompt);
    const track = element("div", { class: "bar-track", "aria-hidden": "true" }, this.bar);
    this.box = element("div", { class: `lane ${method}` }, element("h3", {}, NAMES[method]), this.figures, track, this.text);
    this.text.append(this.prompt, this.end);
    this.text.addEventListener("click", (event) => {
      const chunk = event.target.closest(".chunk");
      if (chunk) onPick(this.method, Number(chunk.dataset.round));
    });
    this.text.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.shown) return;
      event.preventDefault();
      const marked = this.text.querySelector(".chunk.marked");
      const next = Number(marked?.dataset.round ?? (step > 0 ? -1 : this.shown)) + step;
      if (next >= 0 && next < this.shown) onPick(this.method, next);
    });
  }

  // Shows the first rounds of a run, as many as were decoded at a time; returns how many.
  showUntil(run, milliseconds) {
    let due = 0;
    while (due < run.rounds.length && run.rounds[due].total.milliseconds <= milliseconds) due++;
    this.show(run, due);
    return due;
  }

  show(run, due) {
    if (due < this.shown) this.clear();
    for (; this.shown < due; this.shown++) this.end.before(this.chunk(run.rounds[this.shown], this.shown));
    if (due) this.figures.textContent = figuresOf(run.rounds[due - 1].total);
    this.end.hidden = due === run.rounds.length && Boolean(run.done);
  }

  clear() {
    for (const each of [...this.text.querySelectorAll(".chunk")]) each.remove();
    this.shown = 0;
    this.figures.textContent = "waiting";
  }

  chunk(round, number) {
    const words = round.tokens.filter((token) => token.text).map(({ text, source }) => element("span", { class: source }, text));
    return element("span", { class: number === this.marked ? "chunk marked" : "chunk", "data-round": number }, ...words);
  }

  fail(why) {
    this.figures.textContent = this.shown ? `${why} after ${this.figures.textContent}` : why;
    this.end.hidden = true;
  }

  progress(share) {
    this.bar.style.width = `${100 * Math.min(1, share)}%`;
  }

  mark(number) {
    this.marked = number;
    this.text.querySelector(".chunk.marked")?.classList.remove("marked");
    const chunk = number === null ? null : this.text.querySelector(`.chunk[data-round="${number}"]`);
    chunk?.classList.add("marked");
    if (chunk) this.reveal(chunk);
  }

  reveal({ offsetTop, offsetHeight }) {
    const top = offsetTop;
    const { scrollTop, clientHeight } = this.text;
    if (top < scrollTop || top + offsetHeight > scrollTop + clientHeight) this.text.scrollTop = top - clientHeight / 2;
  }

  // Where the text ends, in pixels from its start.
  get head() {
    const last = this.text.querySelector(".chunk:last-of-type") || this.prompt;
    return last.offsetTop + last.offsetHeight;
  }
}

// Lanes scroll as one: what is done to one is done to the other.
export function linkScrolling(lanes) {
  for (const lane of lanes) {
    lane.text.addEventListener("scroll", () => {
      for (const other of lanes) if (other.text.scrollTop !== lane.text.scrollTop) other.text.scrollTop = lane.text.scrollTop;
    });
  }
}

// Follows the text that is ahead, as long as the end of the one behind stays in sight.
export function follow(lanes) {
  const height = Math.min(...lanes.map((lane) => lane.text.clientHeight));
  const heads = lanes.map((lane) => lane.head);
  const top = Math.min(Math.max(...heads) - height + MARGIN, Math.min(...heads) - MARGIN);
  for (const lane of lanes) lane.text.scrollTop = Math.max(0, top);
}

const figuresOf = (total) =>
  `${count(total.tokens, "token")} in ${count(total.rounds + 1, "pass", "passes")}, ${seconds(total.milliseconds)}, ${total.tokens_per_second.toFixed(0)}\u00a0tokens/s`;

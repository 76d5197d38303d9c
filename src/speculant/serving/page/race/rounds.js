// One round after the other: its draft, the pass that verifies it, and what was accepted, in steps that are explained.

import { byId, button } from "../dom.js";
import { count, visible } from "../wording.js";
import { canFold, drawTree } from "./tree.js";

const PHASES = ["draft", "verify", "accept"];
const NAMES = { draft: "Draft", verify: "Verify", accept: "Accept" };
const TERMS = { draft: "What is a draft?", verify: "Why is that fast?", accept: "What is accepted?" };
const MODERATE = 12; // nodes
const QUOTED = 70; // letters
const PAUSE = 1400; // milliseconds of a step that plays

export class Rounds {
  constructor(onRound) {
    this.onRound = onRound;
    this.run = this.timer = null;
    this.number = 0;
    this.phase = "accept";
    this.fold = true;
    this.steps = PHASES.map((phase, place) => button(`${place + 1} ${NAMES[phase]}`, () => this.halt().show(this.number, phase)));
    byId("phases").append(...this.steps);
    byId("previous").addEventListener("click", () => this.halt().show(this.number - 1));
    byId("next").addEventListener("click", () => this.halt().show(this.number + 1));
    byId("round").addEventListener("input", () => this.halt().show(Number(byId("round").value) - 1));
    byId("play-rounds").addEventListener("click", () => (this.timer ? this.halt() : this.play()));
    byId("fold").addEventListener("click", () => this.toggleFold());
    byId("tree").addEventListener("scroll", () => this.hint());
    new ResizeObserver(() => this.hint()).observe(byId("tree"));
  }

  // Takes a run; its rounds are those that a draft may have been made for, the first pass reads the prompt.
  load(run) {
    this.halt();
    this.run = run;
    byId("round-panel").hidden = !run || run.rounds.length < 2;
    if (byId("round-panel").hidden) return;
    byId("round").max = run.rounds.length;
    this.show(this.best());
  }

  // The first round that shows most in a tree of moderate size: some of its draft was accepted and some was not.
  best() {
    const value = ({ drafts: [draft] }) => (draft ? (Math.min(6, draft.path.length) * Math.min(3, draft.texts.length - draft.path.length + 1)) / Math.max(MODERATE, draft.texts.length) : -1);
    const values = this.run.rounds.slice(0, 40).map(value);
    return values.indexOf(Math.max(...values));
  }

  show(number, phase = "accept") {
    if (!this.run) return;
    this.number = Math.max(0, Math.min(this.run.rounds.length - 1, number));
    const round = this.run.rounds[this.number];
    const [draft] = round.drafts;
    this.phase = draft?.texts.length ? phase : "accept";
    byId("round").value = this.number + 1;
    byId("round-title").textContent = `Round ${this.number + 1} of ${this.run.rounds.length}`;
    byId("previous").disabled = this.number === 0;
    byId("next").disabled = this.number === this.run.rounds.length - 1;
    this.steps.forEach((step, place) => {
      step.setAttribute("aria-pressed", String(PHASES[place] === this.phase));
      step.disabled = !draft?.texts.length;
    });
    byId("phase-term").textContent = TERMS[this.phase];
    byId("phase-term").setAttribute("popovertarget", `term-${this.phase}`);
    byId("round-text").textContent = tell(round, this.phase);
    byId("round").setAttribute("aria-valuetext", `${this.number + 1}: ${tell(round, "accept")}`);
    this.draw(draft ?? { texts: [], parents: [], weights: [], path: [], bonus: round.tokens.map((token) => token.text).join("") });
    this.onRound(this.run, this.number);
  }

  draw(draft) {
    const label = `Round ${this.number + 1}: ${count(draft.texts.length, "drafted token")}, ${draft.path.length} accepted; then the model’s own word “${visible(draft.bonus)}”`;
    const svg = drawTree(draft, { fold: this.fold, phase: this.phase, label, onUnfold: () => this.toggleFold() });
    byId("tree").replaceChildren(svg);
    byId("tree").scrollTo(0, 0);
    byId("fold").hidden = !canFold(draft);
    byId("fold").textContent = this.fold ? "Unfold" : "Fold";
    byId("tree-key").textContent = this.phase === "accept" ? "Green: accepted. Dashed: rejected. Orange: the model’s own." : "";
    this.hint();
  }

  toggleFold() {
    this.fold = !this.fold;
    this.show(this.number, this.phase);
  }

  // Says where more of the tree is.
  hint() {
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = byId("tree");
    const more = [scrollLeft + clientWidth < scrollWidth - 4 && "right", scrollTop + clientHeight < scrollHeight - 4 && "below"].filter(Boolean);
    byId("tree").dataset.more = more.join(" ");
    byId("tree-hint").textContent = more.length ? `Scroll for more ${more.join(" and ")} ${more.includes("right") ? "→" : "↓"}` : "";
  }

  play() {
    byId("play-rounds").textContent = "Pause rounds";
    const advance = () => {
      const place = PHASES.indexOf(this.phase);
      if (place < PHASES.length - 1) this.show(this.number, PHASES[place + 1]);
      else if (this.number + 1 < this.run.rounds.length) this.show(this.number + 1, "draft");
      else this.halt();
    };
    this.show(this.number, "draft");
    this.timer = setInterval(advance, PAUSE);
  }

  halt() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play-rounds").textContent = "Play rounds";
    return this;
  }
}

const shorten = (text) => (text.length > QUOTED ? `${text.slice(0, QUOTED - 1).trimEnd()}…` : text);

// Says what happens in a step of a round.
function tell({ drafts: [draft], tokens, milliseconds }, phase) {
  if (!draft) return `The first pass reads the prompt and yields one word, “${visible(tokens.map((token) => token.text).join(""))}”.`;
  const { texts, path, bonus } = draft;
  const took = `${milliseconds.toFixed(1)}\u00a0ms`;
  if (!texts.length) return `Nothing was guessed here. The pass (${took}) yields one word, “${visible(bonus)}”.`;
  if (phase === "draft") return `The drafter guesses ${count(texts.length, "token")} ahead. Where it is unsure, the tree branches.`;
  if (phase === "verify") return `One pass of the model reads ${texts.length === 1 ? "the guess" : `all ${texts.length} guesses`} (the round took ${took}) and finds what it would write itself at each place.`;
  const words = path.map((node) => texts[node]).join("");
  const found = path.length ? `${count(path.length, "guess", "guesses")} of ${texts.length} accepted: “${shorten(visible(words))}”.` : `None of ${count(texts.length, "guess", "guesses")} was right.`;
  return `${found} The model ${bonus ? `adds “${visible(bonus)}”` : "ends the text"}: ${count(path.length + 1, "token")} from one pass.`;
}

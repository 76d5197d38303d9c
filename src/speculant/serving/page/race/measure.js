// The race: the same text without drafts and with them, one run after the other, so that neither slows the other down.

import { events } from "../api.js";
import { median } from "../wording.js";

const WARM_UP = { prompt: "The weather was", max_tokens: 64, temperature: 1, chat: false }; // no example: it is learned
const KNOWN = 0.9; // share of a text that the memory has seen, from which on it knows the text
let warm = false;

// Decodes a text and returns its run; `onRound` is called with the run, after each round and at its end.
export async function decode(method, body, signal, onRound = () => {}) {
  const run = { method, rounds: [], known: null, done: false };
  for await (const event of events("/page/generate", { ...body, method }, signal)) {
    if (event.type === "end") Object.assign(run, { known: event.known, done: true });
    if (event.type === "round") run.rounds.push(event);
    if (run.rounds.length) onRound(run);
  }
  return run;
}

// The first rounds of a server try sizes of drafts and load code, which says nothing of later ones. Plain decoding runs
// before and after, so that a machine that grows slower or faster favors neither; its time is the median, their mean.
// With drafts a new text runs twice: the second time the memory knows it.
export async function race(body, most, { signal, onStage, onRound }) {
  if (!warm) {
    onStage("Warming up", 0);
    const short = { ...WARM_UP, max_tokens: Math.min(WARM_UP.max_tokens, most) };
    for (const method of ["drafts", "plain", "drafts"]) await decode(method, short, signal);
    warm = true;
  }
  onStage("Without drafts", 0.1);
  const plain = [await decode("plain", body, signal, onRound)];
  const { known } = plain[0];
  const drafts = [];
  onStage("With drafts", 0.4);
  drafts.push(await decode("drafts", body, signal, onRound));
  if (known !== null && known < KNOWN) {
    onStage("With drafts, now that the memory knows the text", 0.6);
    drafts.push(await decode("drafts", body, signal));
  }
  onStage("Without drafts again, for a fair mean", 0.8);
  plain.push(await decode("plain", body, signal));
  const milliseconds = median(plain.map(timeOf));
  const results = drafts.map((run, place) => result(run, plain, milliseconds, place ? 1 : known));
  return { plain: scaled(plain[0], milliseconds / timeOf(plain[0])), results };
}

function result(run, plain, milliseconds, known) {
  return {
    run,
    plain: milliseconds,
    drafts: timeOf(run),
    ratio: milliseconds / timeOf(run),
    same: [run, ...plain].every((each) => textOf(each) === textOf(plain[0])),
    known,
    isKnown: known !== null && known >= KNOWN,
  };
}

// The same run at another pace, so that what is played takes as long as what counts.
function scaled(run, factor) {
  const at = (total) => ({ ...total, milliseconds: total.milliseconds * factor, tokens_per_second: total.tokens_per_second / factor });
  return { ...run, rounds: run.rounds.map((round) => ({ ...round, milliseconds: round.milliseconds * factor, total: at(round.total) })) };
}

const timeOf = (run) => run.rounds.at(-1).total.milliseconds;
const textOf = (run) => run.rounds.flatMap((round) => round.tokens.map((token) => token.text)).join("");

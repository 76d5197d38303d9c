// What the memory has learned: its size, how often it was right, and the phrases that it saw most.

import { byId, element } from "../dom.js";
import { count, percent, visible } from "../wording.js";

export function showMemory({ bytes, limit, scope, drafts, hits, phrases }) {
  const whose = scope === "key" ? " of this key" : "";
  const size = bytes ? `${(bytes / 2 ** 20).toFixed(1)} of at most ${Math.round(limit / 2 ** 20)}\u00a0MB${whose}` : "Empty";
  const right = drafts ? `; the first guess was right in ${percent(hits / drafts)} of ${count(drafts, "draft")}` : "";
  byId("memory").textContent = `${size}${right}.`;
  byId("phrases").replaceChildren(shown(phrases, scope));
}

function shown(phrases, scope) {
  if (!phrases) return note(scope === "key" ? "Memories are kept apart by key, so only sizes are shown." : "Its phrases are not shown.");
  if (!phrases.length) return note("Nothing learned yet. After a race, the phrases that it saw most are listed here.");
  return element("ul", {}, ...phrases.map(({ text, uses, following }) => {
    const after = following.filter((each) => each.text.trim()).map((each) => element("span", {}, `${visible(each.text)} `, element("small", {}, percent(each.share))));
    const then = after.length ? [element("span", { class: "then" }, "then "), ...after] : [];
    return element("li", {}, element("q", {}, visible(text)), element("span", { class: "uses" }, `about ${count(uses, "time")}`), element("p", {}, ...then));
  }));
}

const note = (text) => element("p", { class: "quiet" }, text);

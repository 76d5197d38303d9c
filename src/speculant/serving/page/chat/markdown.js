// Markdown as elements: parsed by marked, sanitised by DOMPurify, code coloured by highlight.js when there is some.

import DOMPurify from "../vendor/purify.js";
import { Marked } from "../vendor/marked.js";
import { button, element } from "../dom.js";

const COPIED = 1500; // milliseconds that a button says so
const SANE = { RETURN_DOM_FRAGMENT: true, FORBID_TAGS: ["style", "form", "input", "button", "img", "audio", "video", "source"], FORBID_ATTR: ["style", "id", "name", "class"], ALLOW_DATA_ATTR: false };
// Images would be loaded from elsewhere, so they are links; tags that a model writes are text.
const renderer = { image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`, html: ({ text, block }) => (block ? `<p>${escaped(text)}</p>` : escaped(text)) };
const marked = new Marked({ gfm: true, breaks: true, renderer });

// Replaces what a place holds by a text; while it grows, code is left uncoloured.
export function showMarkdown(place, text, { growing = false } = {}) {
  const languages = codeLanguages(text);
  const content = DOMPurify.sanitize(marked.parse(text), SANE);
  for (const link of content.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const table of [...content.querySelectorAll("table")]) {
    const frame = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  [...content.querySelectorAll("pre > code")].forEach((code, number) => frameCode(code, languages[number] || "", growing));
  place.replaceChildren(content);
}

// The languages of code blocks, in the order in which they are drawn.
function codeLanguages(text) {
  const found = [];
  marked.walkTokens(marked.lexer(text), (token) => token.type === "code" && found.push((token.lang || "").split(/\s/)[0]));
  return found;
}

function frameCode(code, language, growing) {
  const text = code.textContent;
  const head = element("div", { class: "code-head" }, element("span", {}, language || "code"), copyButton(() => text));
  const frame = element("div", { class: "code" }, head);
  code.parentElement.replaceWith(frame);
  const pre = element("pre", { tabindex: "0", role: "region", "aria-label": "Code" }, code);
  frame.append(pre);
  if (language && !growing) colour(code, text, language);
}

async function colour(code, text, language) {
  const { default: highlighter } = await import("../vendor/highlight.js");
  if (!highlighter.getLanguage(language)) return;
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(value, { RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] }));
}

export function copyButton(textOf) {
  const made = button("Copy", async () => {
    made.textContent = (await copy(textOf())) ? "Copied" : "Not allowed";
    setTimeout(() => (made.textContent = "Copy"), COPIED);
  }, { class: "small" });
  return made;
}

// Browsers have a clipboard for pages that come by TLS or from the same machine; elsewhere a selection is copied.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = element("textarea", { class: "hidden", readonly: true });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

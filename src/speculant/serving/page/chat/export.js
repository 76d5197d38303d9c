// Conversations as files.

import { element } from "../dom.js";
import { fenced } from "./conversation.js";

export const asMarkdown = ({ title, messages }) => [`# ${title}`, ...messages.map(section)].join("\n\n") + "\n";

function section({ role, content, reasoning, files = [], images = [] }) {
  const parts = [`## ${role === "user" ? "You" : "Answer"}`];
  parts.push(...files.map(({ name, text }) => `File ${name}:\n${fenced(text)}`), ...images.map(({ name }) => `Image ${name}`));
  if (reasoning) parts.push(reasoning.split("\n").map((line) => `> ${line}`).join("\n"));
  if (content) parts.push(content);
  return parts.join("\n\n");
}

export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export const fileName = (title, ending) => `${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat"}.${ending}`;

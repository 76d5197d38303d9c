// A conversation as data, and the request that continues it.

const TITLE = 48; // letters

export function newConversation() {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`, title: "New chat", created: now, updated: now, messages: [] };
}

export function addMessage(conversation, { text, files, images }) {
  if (!conversation.messages.length) conversation.title = titleOf(text || files[0]?.name || "Image");
  conversation.messages.push({ role: "user", content: text, files, images });
}

const titleOf = (text) => (text.length > TITLE ? `${text.slice(0, TITLE - 1).trimEnd()}…` : text).replaceAll("\n", " ");

// The body of a request for the next answer. Reasoning and failed answers are not sent back.
export function requestOf(conversation, settings) {
  const system = settings.system.trim();
  const messages = conversation.messages.filter((each) => each.role === "user" || each.content).map((each) => ({ role: each.role, content: contentOf(each) }));
  const body = { messages: system ? [{ role: "system", content: system }, ...messages] : messages, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (settings[name] !== null) body[name] = settings[name];
  return body;
}

function contentOf({ content, files = [], images = [] }) {
  const text = [...files.map((file) => `File ${file.name}:\n${fenced(file.text)}`), content].filter(Boolean).join("\n\n");
  if (!images.length) return text;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

// A fence longer than any in the text.
export function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) || []).map((each) => each.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

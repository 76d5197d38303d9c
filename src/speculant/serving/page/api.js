// Requests to the server: with the key, errors in its own words, and event streams.

const STORED = "speculant-key"; // of the tab's session
let key = sessionStorage.getItem(STORED) || "";

export function useKey(value) {
  key = value;
  sessionStorage.setItem(STORED, key);
}

export async function ask(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers }).catch((error) => {
    throw options.signal?.aborted ? error : new Error("The server cannot be reached. Is it still running?");
  });
  if (answer.ok) return answer;
  if (answer.status === 401) {
    document.dispatchEvent(new Event("key-needed"));
    if (!key) throw new KeyNeeded("Enter the API key first.");
  }
  const body = await answer.json().catch(() => null);
  throw new Error(body?.error?.message || `The server answered with status ${answer.status}.`);
}

export class KeyNeeded extends Error {}

// Yields the events of a stream, and throws where it holds an error or ends before its mark.
export async function* events(path, body, signal) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw signal.aborted ? error : new Error("The connection ended before the text did.");
    });
    if (done) throw new Error("The connection ended before the text did.");
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

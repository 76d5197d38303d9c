// The answer of the model to a conversation, as it comes.

import { events } from "../api.js";
import { count } from "../wording.js";
import { requestOf } from "./conversation.js";

const LONG = 200; // milliseconds, of which a speed can be told

// Fills a message with the answer; `onChange` is called each time that it grows. Errors and stops end up in the message.
export async function receive(message, conversation, settings, signal, onChange) {
  let first = null;
  let tokens = null;
  try {
    for await (const chunk of events("/v1/chat/completions", requestOf(conversation, settings), signal)) {
      tokens = chunk.usage?.completion_tokens ?? tokens;
      const { delta, finish_reason: reason } = chunk.choices?.[0] ?? {};
      if (reason === "length") message.cut = true;
      const thought = delta?.reasoning_content ?? delta?.reasoning;
      if (thought) message.reasoning = (message.reasoning || "") + thought;
      if (delta?.content) message.content += delta.content;
      if (!thought && !delta?.content) continue;
      first ??= performance.now();
      onChange();
    }
    message.figures = describe(tokens, first === null ? 0 : performance.now() - first, message.cut);
  } catch (error) {
    if (signal.aborted) message.stopped = true;
    else message.error = error.message;
  }
}

function describe(tokens, milliseconds, cut) {
  const speed = tokens > 1 && milliseconds > LONG ? `${Math.round((1000 * (tokens - 1)) / milliseconds)} tokens/s` : null;
  return [tokens === null ? null : count(tokens, "token"), speed, cut && "cut at the maximum number of tokens"].filter(Boolean).join(", ");
}

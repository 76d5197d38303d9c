// A message of a conversation on the page.

import { button, element } from "../dom.js";
import { copyButton, showMarkdown } from "./markdown.js";

// Draws a message; `actions` has what can be done with the last answer, `running` whether it is being written.
export class MessageBox {
  constructor(message, actions) {
    Object.assign(this, { message, actions });
    this.box = element("article", { class: `message ${message.role}`, "aria-label": message.role === "user" ? "You" : "Answer" });
    if (message.role === "user") this.drawQuestion();
    else this.drawAnswer();
  }

  drawQuestion() {
    const { content, files = [], images = [] } = this.message;
    if (images.length) this.box.append(element("div", { class: "pictures" }, ...images.map(({ url, name }) => element("img", { src: url, alt: name }))));
    if (files.length) this.box.append(element("ul", { class: "files" }, ...files.map(({ name }) => element("li", {}, name))));
    if (content) this.box.append(element("p", { class: "said" }, content));
  }

  drawAnswer() {
    this.summary = element("summary", {}, "Reasoning");
    this.reasoning = element("div", { class: "reasoning-text" });
    this.thought = element("details", { class: "reasoning" }, this.summary, this.reasoning);
    this.text = element("div", { class: "prose" });
    this.foot = element("footer");
    this.box.append(this.thought, this.text, this.foot);
    this.draw({ running: false });
  }

  // Shows what there is of an answer.
  draw({ running }) {
    const { content, reasoning, error, figures, stopped } = this.message;
    this.thought.hidden = !reasoning;
    this.summary.textContent = running && !content ? "Reasoning …" : "Reasoning";
    this.reasoning.textContent = reasoning || "";
    showMarkdown(this.text, content || "", { growing: running });
    this.box.classList.toggle("running", running);
    if (running) this.foot.replaceChildren(element("span", { class: "quiet" }, content || reasoning ? "" : "Waiting for the first word …"));
    else this.drawFoot({ content, error, figures, stopped });
  }

  drawFoot({ content, error, figures, stopped }) {
    const parts = [];
    if (error) parts.push(element("p", { class: "failure" }, error));
    if (content) parts.push(copyButton(() => content));
    if (this.actions?.regenerate) parts.push(button(error ? "Try again" : "Regenerate", this.actions.regenerate, { class: "small" }));
    const facts = [stopped && "Stopped", figures].filter(Boolean).join(", ");
    if (facts) parts.push(element("span", { class: "quiet" }, facts));
    this.foot.replaceChildren(...parts);
  }
}

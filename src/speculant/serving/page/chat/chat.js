// The view of chats: one conversation, its composer, and what can be done with them.

import { byId, button, element } from "../dom.js";
import { startersFor } from "../examples.js";
import { receive } from "./answer.js";
import { Attachments } from "./attachments.js";
import { addMessage, newConversation } from "./conversation.js";
import { asMarkdown, fileName, save } from "./export.js";
import { History } from "./history.js";
import { MessageBox } from "./message.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";

const NEAR = 80; // pixels from the end, within which the view follows a growing answer

export class ChatView {
  constructor() {
    this.store = new Store();
    this.settings = new Settings();
    this.attachments = new Attachments((text) => this.warn(text));
    this.history = new History({ onOpen: (id) => this.load(id), onDelete: (id) => this.remove(id), onNew: () => this.begin(), onClear: () => this.clear() });
    this.conversation = newConversation();
    this.all = [];
    this.stopping = this.state = null;
    this.loading = this.list();
    byId("composer").addEventListener("submit", (event) => this.send(event));
    byId("message").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    byId("message").addEventListener("input", () => grow(byId("message")));
    byId("stop-chat").addEventListener("click", () => this.stopping?.abort());
    byId("export-markdown").addEventListener("click", () => this.export("md", "text/markdown", asMarkdown(this.conversation)));
    byId("export-json").addEventListener("click", () => this.export("json", "application/json", JSON.stringify(this.conversation, null, 2)));
    byId("export").addEventListener("click", () => byId("export").hidePopover());
    byId("export-all").addEventListener("click", () => save("chats.json", "application/json", JSON.stringify(this.all, null, 2)));
  }

  update(state, modalities) {
    this.state = state;
    this.attachments.allowImages(modalities.includes("image"));
    this.settings.limit(state.max_tokens);
    if (!this.conversation.messages.length) this.draw();
  }

  open() {
    this.draw();
    byId("message").focus({ preventScroll: true });
  }

  async list() {
    this.all = await this.store.all();
    this.history.show(this.all, this.conversation.id);
  }

  async load(id) {
    if (id === this.conversation.id) return this.history.unfold(false);
    this.stopping?.abort();
    this.conversation = this.all.find((each) => each.id === id);
    this.history.unfold(false);
    this.draw();
    await this.list();
  }

  begin() {
    this.stopping?.abort();
    this.conversation = newConversation();
    this.history.unfold(false);
    this.draw();
    this.history.show(this.all, this.conversation.id);
    byId("message").focus();
  }

  async remove(id) {
    await this.store.remove(id);
    if (id === this.conversation.id) this.begin();
    await this.list();
  }

  async clear() {
    await this.store.clear();
    this.begin();
    await this.list();
  }

  async send(event) {
    event.preventDefault();
    const text = byId("message").value.trim();
    if (this.stopping || this.state?.chat === false || !(text || this.attachments.files.length || this.attachments.images.length)) return;
    this.warn("");
    addMessage(this.conversation, { text, ...this.attachments.take() });
    byId("message").value = "";
    grow(byId("message"));
    await this.answer();
  }

  async regenerate() {
    if (this.stopping) return;
    this.conversation.messages.pop();
    await this.answer();
  }

  // Has the model answer, whatever becomes of it: an error is a part of the answer, and the next message can be sent.
  async answer() {
    const { conversation } = this;
    const message = { role: "assistant", content: "" };
    const controller = new AbortController();
    this.busy(controller);
    await this.keep(conversation);
    conversation.messages.push(message);
    this.draw();
    const box = this.boxes.at(-1);
    box.draw({ running: true });
    this.scroll(true);
    let due = false;
    const onChange = () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        if (this.stopping !== controller) return;
        const follows = this.isNearEnd();
        box.draw({ running: true });
        this.scroll(follows);
      });
    };
    await receive(message, { ...conversation, messages: conversation.messages.slice(0, -1) }, this.settings.values, controller.signal, onChange);
    if (this.stopping === controller) this.busy(null);
    await this.keep(conversation);
    if (conversation === this.conversation) {
      const follows = this.isNearEnd();
      box.draw({ running: false });
      this.scroll(follows);
    }
  }

  async keep(conversation) {
    conversation.updated = Date.now();
    await this.store.save(conversation);
    await this.list();
  }

  draw() {
    const { messages, title } = this.conversation;
    byId("chat-title").textContent = title;
    byId("export-button").hidden = !messages.length;
    const last = messages.at(-1);
    this.boxes = messages.map((each) => new MessageBox(each, each === last && each.role === "assistant" ? { regenerate: () => this.regenerate() } : null));
    const shown = messages.length ? this.boxes.map((each) => each.box) : [this.welcome()];
    if (last?.role === "user" && !this.stopping) shown.push(button("Answer this", () => this.answer(), { class: "small" })); // the page was left
    byId("messages").replaceChildren(...shown);
    this.scroll(true);
  }

  welcome() {
    const talks = this.state?.chat !== false;
    byId("send").disabled = !talks;
    const name = this.state ? this.state.model : "the model";
    if (!talks) return element("div", { class: "welcome" }, element("h2", {}, `${name} does not chat`), element("p", {}, "It has no chat template, so it continues texts only: see the race."));
    const starters = startersFor(name).map((text) => button(text, () => {
      byId("message").value = text;
      byId("composer").requestSubmit();
    }));
    const note = "Every answer is drafted and verified as in the race: what the model would write anyway, sooner.";
    return element("div", { class: "welcome" }, element("h2", {}, `Chat with ${name}`), element("p", {}, note), element("div", { class: "chips" }, ...starters));
  }

  isNearEnd() {
    const { scrollTop, scrollHeight, clientHeight } = byId("messages");
    return scrollTop + clientHeight > scrollHeight - NEAR;
  }

  scroll(wanted) {
    if (wanted) byId("messages").scrollTop = byId("messages").scrollHeight;
  }

  warn(text) {
    byId("composer").querySelector(".failure")?.remove();
    if (text) byId("composer").prepend(element("p", { class: "failure", role: "alert" }, text));
  }

  busy(controller) {
    this.stopping = controller;
    byId("send").hidden = Boolean(controller);
    byId("stop-chat").hidden = !controller;
  }

  export(ending, type, text) {
    save(fileName(this.conversation.title, ending), type, text);
  }
}

// Makes a field as high as its text, up to what its style allows.
function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

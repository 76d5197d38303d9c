// Settings of chats, kept in this browser.

import { byId } from "../dom.js";

const STORED = "speculant-chat-settings";
const DEFAULTS = { system: "", temperature: 0.7, top_p: 1, max_tokens: null, seed: null };

export class Settings {
  constructor() {
    this.values = { ...DEFAULTS, ...read() };
    const dialog = byId("chat-settings");
    const form = dialog.querySelector("form");
    byId("show-settings").addEventListener("click", () => {
      this.fill(form);
      dialog.showModal();
    });
    byId("reset-settings").addEventListener("click", () => {
      this.keep({ ...DEFAULTS });
      this.fill(form);
    });
    form.addEventListener("submit", () => {
      const number = (name) => (form.elements[name].value === "" ? null : Number(form.elements[name].value));
      this.keep({ system: form.elements.system.value, ...Object.fromEntries(["temperature", "top_p", "max_tokens", "seed"].map((name) => [name, number(name)])) });
    });
  }

  // Tells the most tokens that the server gives.
  limit(most) {
    byId("chat-settings").querySelector("[name=max_tokens]").max = most;
  }

  fill(form) {
    for (const [name, value] of Object.entries(this.values)) form.elements[name].value = value ?? "";
  }

  keep(values) {
    this.values = values;
    localStorage.setItem(STORED, JSON.stringify(values));
  }
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) || {};
  } catch {
    return {};
  }
}

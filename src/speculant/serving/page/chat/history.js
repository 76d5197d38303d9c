// The list of conversations.

import { byId, button, element } from "../dom.js";

export class History {
  constructor({ onOpen, onDelete, onNew, onClear }) {
    Object.assign(this, { onOpen, onDelete });
    byId("new-chat").addEventListener("click", onNew);
    byId("show-history").addEventListener("click", () => this.unfold(byId("show-history").getAttribute("aria-expanded") !== "true"));
    byId("delete-all").addEventListener("click", () => confirm("Delete all conversations in this browser?") && onClear());
  }

  // Shows the list on a phone, where it is hidden at first.
  unfold(open) {
    byId("show-history").setAttribute("aria-expanded", String(open));
    byId("history").classList.toggle("open", open);
  }

  show(conversations, current) {
    byId("delete-all").hidden = !conversations.length;
    byId("conversations").replaceChildren(...conversations.map((each) => {
      const open = button(each.title, () => this.onOpen(each.id), { class: "title" });
      if (each.id === current) open.setAttribute("aria-current", "true");
      return element("li", {}, open, button("×", () => this.onDelete(each.id), { "aria-label": `Delete ${each.title}` }));
    }));
  }
}

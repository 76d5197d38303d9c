// The page: its two views, the key, errors, and what the server says of itself.

import { KeyNeeded, ask, useKey } from "./api.js";
import { byId } from "./dom.js";
import { placePopovers } from "./popovers.js";
import { ChatView } from "./chat/chat.js";
import { RaceView } from "./race/view.js";

const VIEWS = ["race", "chat"];

function showError(text) {
  byId("error").hidden = !text;
  byId("error-text").textContent = text ? text[0].toUpperCase() + text.slice(1) : "";
}

async function refresh() {
  try {
    const state = await (await ask("/page/state")).json();
    byId("key-form").hidden = true;
    byId("server").textContent = `${state.model}, method ${state.method}, version ${state.version}`;
    race.update(state);
    const { data } = await (await ask("/v1/models")).json();
    chat.update(state, data.find((each) => each.id === state.model)?.modalities || ["text"]);
  } catch (error) {
    if (!(error instanceof KeyNeeded)) showError(error.message);
  }
}

function route() {
  const shown = VIEWS.find((view) => location.hash === `#${view}`) || VIEWS[0];
  for (const view of VIEWS) {
    byId(view).hidden = view !== shown;
    const link = document.querySelector(`nav a[href="#${view}"]`);
    if (view === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = shown === "chat" ? "Chat, Speculant" : "Speculant";
  document.body.dataset.view = shown;
  if (shown === "chat") chat.open();
}

const race = new RaceView({ showError, refresh });
const chat = new ChatView();

addEventListener("hashchange", route);
document.addEventListener("key-needed", () => {
  byId("key-form").hidden = false;
  byId("server").textContent = "Locked";
  byId("key").focus();
});
byId("dismiss").addEventListener("click", () => showError(""));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  showError("");
  refresh();
});
placePopovers();
route();
refresh();

// The page: which view is shown, how the server is, the key, and the theme.

import { bus, getJson, useKey } from "./api.js";
import "./canvas-view.js";
import "./timeline.js";
import "./inspector.js";
import "./run-panel.js";
import "./run-list.js";
import "./settings.js";
import "./chat.js";
import "./write.js";
import "./compare.js";
import "./sudoku.js";
import "./form.js";
import "./server-panel.js";
import { setUpTheme } from "./theme.js";

const LOOK_EVERY = 2000; // milliseconds between two looks at the server
const VIEWS = [...document.querySelectorAll("[data-view]")];
const status = document.getElementById("status");
const banner = document.getElementById("banner");
const keyForm = document.getElementById("key");

function showView() {
  const wanted = VIEWS.find((view) => view.dataset.view === location.hash.slice(1)) ?? VIEWS[0];
  for (const view of VIEWS) {
    view.hidden = view !== wanted;
    const tab = document.querySelector(`.tabs a[href="#${view.dataset.view}"]`);
    if (view === wanted) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.getElementById("main").scrollTop = 0;
  wanted.opened?.();
}

/** Ask how the server is; it says so without a key. */
async function look() {
  let state = null;
  try {
    const response = await fetch("/health", { cache: "no-store" });
    state = await response.json();
  } catch {
    // not even an answer
  }
  const name = state?.engine ?? "lost";
  const loading = state && state.progress > 0 && state.progress < 1 ? ` ${Math.round(100 * state.progress)} %` : "";
  if (status.dataset.state !== name || loading)
    status.textContent = `${{ ready: "ready", lost: "no server" }[name] ?? name}${loading}`;
  status.dataset.state = name;
  const trouble = {
    lost: "The server does not answer. Start it again with `gesso serve`; this page waits for it.",
    restarting: "The engine is being restarted; requests wait for it.",
    broken: `The model cannot be loaded: ${state?.message ?? ""}`,
  }[name];
  if (banner.textContent !== (trouble ?? "")) banner.textContent = trouble ?? "";
  banner.hidden = !trouble;
}

async function keepLooking() {
  await look();
  setTimeout(keepLooking, LOOK_EVERY);
}

bus.addEventListener("lost", look);
bus.addEventListener("key-required", () => {
  if (!keyForm.hidden) return; // asked for already: the focus is where the user has it
  keyForm.hidden = false;
  document.getElementById("key-field").focus();
});
keyForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  useKey(document.getElementById("key-field").value);
  keyForm.hidden = true;
  document.getElementById("key-field").value = "";
  greet();
});

/** The first call that needs a key, so that a server with keys asks for one at once. */
async function greet() {
  try {
    const { data } = await getJson("/v1/models");
    bus.dispatchEvent(new CustomEvent("models", { detail: data.map((model) => model.id) }));
  } catch {
    // the key form or the banner says what is wrong
  }
}

// Where the page is after "#" is the view; a jump within the page must not become another one.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
setUpTheme(document.getElementById("theme"));
window.addEventListener("hashchange", showView);
showView();
keepLooking();
greet();

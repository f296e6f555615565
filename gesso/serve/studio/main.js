// The page: choice of the view, state of the server, API key, and theme.

import { bus, useKey } from "./api.js";
import "./canvas-view.js";
import "./timeline.js";
import "./inspector.js";
import "./graph.js";
import "./run-panel.js";
import "./run-list.js";
import "./settings.js";
import "./chat.js";
import "./write.js";
import "./compare.js";
import "./sudoku.js";
import "./form.js";
import "./server-panel.js";
import { loadModels, setUpModels } from "./models.js";
import { setUpTheme } from "./theme.js";

const POLL_INTERVAL = 2000; // milliseconds between two requests for the server's state
const VIEWS = [...document.querySelectorAll("[data-view]")];
const status = document.getElementById("status");
const banner = document.getElementById("banner");
const keyForm = document.getElementById("key");
const picker = document.getElementById("model");
const tabs = document.querySelector(".tabs");

function showView() {
  const wanted = VIEWS.find((view) => view.dataset.view === location.hash.slice(1)) ?? VIEWS[0];
  for (const view of VIEWS) {
    view.hidden = view !== wanted;
    const tab = document.querySelector(`.tabs a[href="#${view.dataset.view}"]`);
    if (view === wanted) {
      tab.setAttribute("aria-current", "page");
      tab.scrollIntoView({ block: "nearest", inline: "center" });
    } else tab.removeAttribute("aria-current");
  }
  document.querySelector("dialog[open]")?.close(); // of the view that was left
  document.getElementById("main").scrollTop = 0;
  wanted.opened?.();
}

/** Fade the tab bar out where there are more tabs. */
function fadeTabs() {
  const left = tabs.scrollLeft;
  tabs.classList.toggle("more-before", left > 1);
  tabs.classList.toggle("more-after", left + tabs.clientWidth < tabs.scrollWidth - 1);
}

/** Show the state of the server. /health needs no key. */
async function showHealth() {
  let state = null;
  try {
    const response = await fetch("/health", { cache: "no-store" });
    state = await response.json();
  } catch {
    // no answer: shown as lost
  }
  const name = state?.engine ?? "lost";
  const loading = state && state.progress > 0 && state.progress < 1 ? ` ${Math.round(100 * state.progress)} %` : "";
  if (status.dataset.state !== name || loading)
    status.textContent = `${{ ready: "ready", lost: "no server" }[name] ?? name}${loading}`;
  const before = status.dataset.state;
  if (name === "ready" && before && before !== name) loadModels(picker); // others, or more known about them
  status.dataset.state = name;
  const trouble = {
    lost: "The server does not answer. Start it again with `gesso serve`; this page will reconnect.",
    restarting: "The engine is restarting; requests wait until it is ready.",
    broken: `The model cannot be loaded: ${state?.message ?? ""}`,
  }[name];
  if (banner.textContent !== (trouble ?? "")) banner.textContent = trouble ?? "";
  banner.hidden = !trouble;
}

async function pollHealth() {
  await showHealth();
  setTimeout(pollHealth, POLL_INTERVAL);
}

bus.addEventListener("lost", showHealth);
bus.addEventListener("key-required", () => {
  if (!keyForm.hidden) return; // already shown: do not move the focus
  keyForm.hidden = false;
  document.getElementById("key-field").focus();
});
keyForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  useKey(document.getElementById("key-field").value);
  keyForm.hidden = true;
  document.getElementById("key-field").value = "";
  loadModels(picker);
});

// The part of the address after "#" is the view, so a jump within the page must not change it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
setUpTheme(document.getElementById("theme"));
window.addEventListener("hashchange", showView);
tabs.addEventListener("scroll", fadeTabs);
new ResizeObserver(fadeTabs).observe(tabs);
showView();
pollHealth();
setUpModels(picker);

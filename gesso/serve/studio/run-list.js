// <run-list>: a table of the last runs and their costs, with a button to show each of them.
//
// Event: "show" {recording}.

import { h, number } from "./dom.js";

const KEPT = 8;

export class RunList extends HTMLElement {
  runs = [];

  add(recording) {
    if (!recording.length) return;
    this.runs = [recording, ...this.runs].slice(0, KEPT);
    this.#draw();
  }

  #draw() {
    const head = ["Run", "Steps", "Seconds", "Tokens per step", "Seed"].map((name) => h("th", { scope: "col" }, name));
    this.replaceChildren(
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Costs of the last runs" },
        h(
          "table",
          { class: "runs" },
          h("caption", {}, "Costs of the last runs"),
          h("thead", {}, h("tr", {}, head)),
          h(
            "tbody",
            {},
            this.runs.map((run) => this.#row(run)),
          ),
        ),
      ),
    );
  }

  #row(recording) {
    const now = recording.counters(recording.length - 1);
    const show = () => this.dispatchEvent(new CustomEvent("show", { detail: { recording } }));
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        h("button", { type: "button", class: "quiet", onclick: show }, recording.label || "run"),
      ),
      h("td", {}, String(recording.length)),
      h("td", {}, number(recording.seconds, 2)),
      h("td", {}, number(now.perStep)),
      h("td", {}, String(recording.seed)),
    );
  }
}

customElements.define("run-list", RunList);

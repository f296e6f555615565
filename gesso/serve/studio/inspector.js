// <token-inspector>: one position of a recording: its candidates and its history.
//
// Event: "choose" {position, token}: pin this candidate. Only in panels that support pins.

import { h } from "./dom.js";
import { stateName } from "./recording.js";

const SHOWN = 12; // entries of a history, which can be long for a noisy position

export class TokenInspector extends HTMLElement {
  connectedCallback() {
    if (!this.childNodes.length) this.clear();
  }

  clear() {
    this.position = -1;
    this.replaceChildren(
      h(
        "p",
        { class: "hint" },
        "Point at a token to see its candidates. ",
        this.#able("pins") ? "Click it to pin it. " : null,
        this.#able("span") ? "Drag over several to rewrite them." : null,
      ),
    );
  }

  #able(what) {
    return (this.getAttribute("able") ?? "").split(" ").includes(what);
  }

  show(recording, index, position) {
    const here = recording.locate(index, position);
    if (!here) return this.clear();
    const [step, at] = here;
    this.position = position;
    const piece = recording.piece(step.tokens[at]);
    this.replaceChildren(
      h(
        "div",
        { class: "inspected" },
        h("code", { class: "piece" }, visible(piece)),
        h(
          "span",
          { class: "hint" },
          `position ${position} · ${stateName(step.states[at])} · entropy ${step.entropy[at].toFixed(3)}`,
        ),
      ),
      this.#candidates(recording, index, position),
      this.#history(recording, index, position),
    );
  }

  #candidates(recording, index, position) {
    const found = recording.candidates(index, position);
    if (!found.length) return h("p", { class: "hint" }, "Candidates were not recorded for this run.");
    const rows = found.map(({ token, share }) => {
      const bar = h("span", { class: "bar" });
      bar.style.setProperty("--share", share);
      const parts = [h("code", {}, visible(recording.piece(token))), bar, h("span", { class: "share" }, percent(share))];
      if (!this.#able("pins")) return h("li", { class: "candidate" }, parts);
      const onclick = () => this.dispatchEvent(new CustomEvent("choose", { detail: { position, token } }));
      const title = "Pin this token here";
      return h("li", {}, h("button", { type: "button", class: "candidate", title, onclick }, parts));
    });
    return h("section", {}, h("h3", { class: "label" }, "Candidates"), h("ul", { class: "candidates" }, rows));
  }

  #history(recording, index, position) {
    const entries = recording.history(index, position);
    const hidden = Math.max(0, entries.length - SHOWN);
    const rows = entries
      .slice(hidden)
      .map(({ token, from, until }) =>
        h(
          "li",
          {},
          h("code", {}, visible(recording.piece(token))),
          h("span", { class: "hint" }, from === until ? `step ${from}` : `steps ${from}–${until}`),
        ),
      );
    const more = hidden ? h("li", { class: "hint" }, `${hidden} earlier entries`) : null;
    return h("section", {}, h("h3", { class: "label" }, "History"), h("ol", { class: "history" }, more, rows));
  }
}

/** Return a token's text with visible white space. */
export function visible(piece) {
  return piece.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
}

function percent(share) {
  return share >= 0.995 ? "100 %" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

customElements.define("token-inspector", TokenInspector);

// <run-panel>: one run: its canvas, a drawing if the text is a graph, timeline, counters, inspector, and actions for pins
// and spans. `tools` is an element of the owner, shown below them.
//
// Events: "redenoise" {pins}: generate the text again with these pins. "rewrite" {text, start, end, tokens}: rewrite
// these characters of `text`, which includes the given text around the canvas; they have `tokens` tokens now.

import { h, number, oncePerFrame } from "./dom.js";
import { reasonInWords } from "./recording.js";
import { visible } from "./inspector.js";

export class RunPanel extends HTMLElement {
  #recording = null;
  #following = true; // show the newest step until the user moves to another one
  #pins = new Map(); // {token, piece} by position

  connectedCallback() {
    if (this.view) return;
    this.view = document.createElement("canvas-view");
    this.timeline = document.createElement("run-timeline");
    this.inspector = document.createElement("token-inspector");
    this.graph = document.createElement("graph-view");
    this.counters = h("dl", { class: "counters", "aria-label": "Counters" });
    this.actions = h("div", { class: "run-actions", "aria-live": "polite" });
    this.note = h("p", { class: "note" });
    this.mode = h("div", { class: "switch", role: "group", "aria-label": "Canvas layout" }, this.#modes());
    this.append(
      h("div", { class: "panel-head" }, this.counters, this.mode),
      h("div", { class: "stage" }, this.note, this.view, this.graph),
      legend(),
      this.actions,
      this.timeline,
      this.inspector,
      this.tools ?? "",
    );
    this.timeline.addEventListener("move", (event) => {
      this.#following = event.detail.index === this.#recording.length - 1;
      this.#go(event.detail.index);
    });
    this.view.addEventListener("inspect", (event) => this.#inspect(event.detail.position));
    this.view.addEventListener("pick", (event) => this.#toggle(event.detail.position));
    this.view.addEventListener("select", () => this.#drawActions());
    this.inspector.addEventListener("choose", (event) => this.#pin(event.detail.position, event.detail.token));
    this.refresh = oncePerFrame(() => this.#refresh());
    this.recording = null;
  }

  get recording() {
    return this.#recording;
  }

  /** Show a recording at its newest step, with its pins. */
  set recording(recording) {
    this.#recording = recording;
    this.#following = true;
    this.#pins = new Map(recording?.pins ?? []);
    this.view.recording = recording;
    this.timeline.recording = recording;
    this.graph.recording = recording;
    this.inspector.setAttribute("able", this.able.join(" "));
    this.inspector.clear();
    this.view.pins = this.#pins;
    this.#refresh();
    this.#drawActions();
  }

  /** Show a recording from its first step on. It stays there for people who prefer reduced motion. */
  replay(recording) {
    this.recording = recording;
    this.goTo(0);
    if (recording.length > 1 && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.timeline.toggle();
  }

  /** The actions that the owner of this panel supports: "pins" and "span". They need the request of the run. */
  get able() {
    return this.#recording?.replayed ? [] : (this.getAttribute("able") ?? "").split(" ");
  }

  /** The text of the canvas before the first run. */
  set empty(text) {
    this.setAttribute("empty", text);
    this.#drawNote();
  }

  get index() {
    return this.view.index;
  }

  goTo(index) {
    this.#following = index >= this.#recording.length - 1;
    this.#go(index);
  }

  #pin(position, token) {
    this.#pins.set(position, { token, piece: this.#recording.piece(token) });
    this.#pinned();
  }

  #toggle(position) {
    if (!this.able.includes("pins")) return;
    if (this.#pins.delete(position)) return this.#pinned();
    const here = this.#recording.locate(this.index, position);
    if (here) this.#pin(position, here[0].tokens[here[1]]);
  }

  #pinned() {
    this.view.pins = this.#pins;
    this.#drawActions();
  }

  #refresh() {
    this.#drawNote();
    this.timeline.grown();
    this.graph.grown();
    if (this.#following && this.#recording?.length) this.#go(this.#recording.length - 1);
    else this.#drawCounters();
  }

  #drawNote() {
    const text = this.#recording?.length ? this.#recording.note : (this.getAttribute("empty") ?? "");
    if (this.note.textContent !== text) this.note.textContent = text;
  }

  #go(index) {
    this.view.index = index;
    this.timeline.index = index;
    this.graph.index = index;
    this.#drawCounters();
    if (this.inspector.position >= 0) this.inspector.show(this.#recording, index, this.inspector.position);
    this.dispatchEvent(new CustomEvent("step", { detail: { index } }));
  }

  #inspect(position) {
    this.inspector.show(this.#recording, this.index, position);
  }

  #drawCounters() {
    const now = this.#recording && this.#recording.counters(this.index);
    if (!now) return this.counters.replaceChildren();
    this.#values ??= this.#counterValues();
    const values = [
      `${now.canvas} of ${now.canvases}`,
      `${now.step} of ${now.most}`,
      `${now.tokens} of ${now.length}`,
      number(now.perStep),
      number(now.perSecond, 0),
      now.reason ? reasonInWords(now.reason) : `entropy ${number(now.entropy, 2)}`,
    ];
    if (!this.counters.firstChild) this.counters.append(...this.#values.map(([box]) => box));
    values.forEach((text, i) => {
      const node = this.#values[i][1];
      if (node.data !== text) node.data = text;
    });
  }

  #values = null;

  #counterValues() {
    return ["canvas", "step", "settled", "tok/step", "tok/s", "canvas is"].map((name) => {
      const text = document.createTextNode("");
      return [h("div", {}, h("dt", {}, name), h("dd", {}, text)), text];
    });
  }

  #modes() {
    return ["text", "grid"].map((mode) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(mode === "text"),
          onclick: (event) => {
            this.view.dataset.mode = mode;
            for (const button of this.mode.children)
              button.setAttribute("aria-pressed", String(button === event.target));
          },
        },
        mode === "text" ? "Text" : "Grid",
      ),
    );
  }

  /** Show the actions for the selected span or the pins. */
  #drawActions() {
    const parts = [];
    const span = this.able.includes("span") ? this.view.selection : null;
    if (span) {
      const button = h(
        "button",
        { type: "button", class: "primary", onclick: () => this.#emit("rewrite", this.#characters(span)) },
        `Rewrite ${span.end - span.start} tokens`,
      );
      parts.push(button, h("span", { class: "hint" }, "The rest of the text stays as it is."));
    } else if (this.#pins.size) {
      const chips = [...this.#pins]
        .sort((a, b) => a[0] - b[0])
        .map(([position, { piece }]) =>
          h(
            "button",
            {
              type: "button",
              class: "chip",
              "aria-label": `Remove the pin ${visible(piece)} at ${position}`,
              onclick: () => this.#unpin(position),
            },
            h("code", {}, visible(piece)),
            h("span", { "aria-hidden": "true" }, "×"),
          ),
        );
      const count = `${this.#pins.size} ${this.#pins.size === 1 ? "pin" : "pins"}`;
      parts.push(
        h(
          "button",
          { type: "button", class: "primary", onclick: () => this.#emit("redenoise", { pins: new Map(this.#pins) }) },
          `Re-denoise with ${count}`,
        ),
        chips,
        h(
          "span",
          { class: "hint" },
          "The rest is generated again around the pins. Choose a candidate below to pin another token.",
        ),
      );
    }
    this.actions.replaceChildren(...parts.flat());
  }

  #unpin(position) {
    this.#pins.delete(position);
    this.#pinned();
    this.view.list.focus();
  }

  /** Convert a span of positions to characters of the whole text (code points, as the server counts them). */
  #characters({ start, end }) {
    const given = this.#recording.textBefore;
    const text = (to) => given + this.#recording.textBetween(this.index, 0, to);
    const count = (to) => [...text(to)].length;
    return {
      text: text(Infinity) + this.#recording.after,
      start: count(start),
      end: count(end),
      tokens: end - start,
    };
  }

  /** Dispatch an event. Move the focus first, because the pressed button will be removed. */
  #emit(name, detail) {
    this.view.list.focus();
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** Return the legend of the colours. It is hidden from assistive technology; the inspector has the same in words. */
function legend() {
  const scale = [1, 3, 5, 7, 8].map((level) => h("span", { class: `t l${level}` }));
  return h(
    "p",
    { class: "legend", "aria-hidden": "true" },
    h("span", {}, "sure ", scale, " unsure"),
    h("span", { class: "solid" }, "settled"),
    h("span", { class: "pinned" }, "pinned"),
  );
}

customElements.define("run-panel", RunPanel);

// <write-view>: an editor. The model continues the text at its end, fills holes […] or rewrites the selection. The canvas
// shows the steps.

import { h } from "./dom.js";
import { drawer } from "./drawer.js";
import { chosenModel } from "./models.js";
import { Recording } from "./recording.js";
import { runTools } from "./run-tools.js";
import { drawSeed, maxTokensFor, record, withPins } from "./runner.js";

export const HOLE = "[…]";
const EXAMPLE = `class Point:
    def __init__(self, x, y):
        self.x = x
        ${HOLE}

    def __repr__(self):
        return f"Point({self.x}, {self.y})"
`;

export class WriteView extends HTMLElement {
  connectedCallback() {
    if (this.editor) return;
    this.stop = null;
    this.undone = []; // earlier texts
    this.editor = h("textarea", { class: "editor", "aria-label": "Text", spellcheck: "false", rows: 14 });
    this.editor.value = EXAMPLE;
    for (const name of ["select", "keyup", "pointerup", "input"])
      this.editor.addEventListener(name, () => this.#drawButtons());
    this.settings = h("run-settings", { tokens: "" }); // a hole of the right length: see `gesso infill`
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.panel = h("run-panel", { able: "pins span" });
    this.panel.tools = runTools(this.panel, () => this.#next());
    this.panel.addEventListener("redenoise", (event) => this.#redenoise(event.detail.pins));
    this.panel.addEventListener("rewrite", ({ detail }) => this.#edit(detail.text, detail.start, detail.end, detail.tokens));
    this.runs = h("run-list", {});
    this.runs.addEventListener("show", (event) => this.panel.replay(event.detail.recording));
    [this.open, this.drawer] = drawer("Settings", this.settings);
    this.append(this.drawer, h("div", { class: "split" }, this.#left(), h("div", { class: "column" }, this.panel, this.runs)));
    this.#drawButtons();
  }

  #left() {
    const button = (text, action, primary) =>
      h("button", { type: "button", class: primary ? "primary" : false, onclick: action }, text);
    this.write = button("Write", () => (this.stop ? this.stop.abort() : this.#write()), true);
    this.hole = button(`Insert hole ${HOLE}`, () => this.#insertHole());
    this.rewrite = button("Rewrite selection", () => this.#rewriteSelection());
    this.undo = button("Undo", () => this.#undo());
    return h(
      "div",
      { class: "column" },
      h(
        "p",
        { class: "lead" },
        `A hole ${HOLE} is filled to fit the text on both sides. Without a hole, the text is continued at its end. `,
        "Select text to rewrite it.",
      ),
      h("div", { class: "row" }, this.write, this.hole, this.rewrite, this.undo, this.open),
      this.editor,
      this.complaint,
    );
  }

  #drawButtons() {
    const selected = this.editor.selectionEnd > this.editor.selectionStart;
    const action = this.editor.value.includes(HOLE) ? "Fill the hole" : "Continue";
    this.write.textContent = this.stop ? "Stop" : action;
    this.panel.empty = `Press “${action}” and watch the new text emerge from noise.`;
    this.editor.readOnly = this.stop !== null; // typed text would be overwritten
    this.hole.disabled = this.stop !== null;
    this.rewrite.disabled = !selected || this.stop !== null;
    this.undo.disabled = !this.undone.length || this.stop !== null;
  }

  #insertHole() {
    this.editor.setRangeText(HOLE, this.editor.selectionStart, this.editor.selectionEnd, "end");
    this.editor.focus();
    this.#drawButtons();
  }

  #undo() {
    this.editor.value = this.undone.pop();
    this.#drawButtons();
  }

  #change(text) {
    this.undone.push(this.editor.value);
    this.editor.value = text;
    this.#drawButtons();
  }

  // --- requests ------------------------------------------------------------------------------------------------------

  /** Return what all requests have. */
  #common() {
    const seed = this.settings.seedOrNone ?? drawSeed();
    return { model: chosenModel(), seed, diffusion: this.settings.diffusion };
  }

  /** Return the body that continues `text`, or fills the hole between it and `after`. */
  #body(text, after, common) {
    const hole = after === undefined ? {} : { suffix: after || "\n" };
    const most = { max_tokens: this.settings.maxTokens, stream_options: { include_usage: true } };
    return { prompt: text, ...hole, ...common, ...most };
  }

  /** Return the first request of the button. */
  #next() {
    const [first, after] = this.editor.value.split(HOLE);
    return { path: "/v1/completions", body: this.#body(first, after, this.#common()) };
  }

  async #write() {
    const [first, ...rest] = this.editor.value.split(HOLE);
    const common = this.#common();
    if (!rest.length) return this.#continue(this.#body(first, undefined, common), new Map());
    // Each hole gets the text before it, with earlier holes filled, and the given text up to the next hole.
    let text = first;
    for (const [i, part] of rest.entries()) {
      const later = rest
        .slice(i + 1)
        .map((other) => HOLE + other)
        .join("");
      const recording = new Recording({
        before: text,
        after: part,
        hole: true,
        label: `hole ${i + 1} · ${this.settings.label}`,
      });
      const body = this.#body(text, part, common);
      const middle = await this.#run("/v1/completions", body, recording, (choice) => choice.text);
      if (middle === null) return;
      recording.filledWith(middle);
      this.panel.refresh();
      text += middle + part;
      this.#change(text + later);
    }
  }

  async #continue(body, pins) {
    const label = pins.size ? `${pins.size} pinned · ${this.settings.label}` : this.settings.label;
    const recording = new Recording({ before: body.prompt, label, pins });
    recording.body = body; // for another run with pins
    const added = await this.#run("/v1/completions", withPins(body, pins), recording, (choice, text) => text + choice.text);
    if (added !== null) this.#change(body.prompt + added);
  }

  #redenoise(pins) {
    const { recording } = this.panel;
    if (this.stop) return;
    if (recording.body) return this.#continue(recording.body, pins);
    this.complaint.textContent =
      "Pins work only with continued text, not with a hole. Select words to rewrite them.";
  }

  #rewriteSelection() {
    const { value, selectionStart, selectionEnd } = this.editor;
    const start = [...value.slice(0, selectionStart)].length;
    const end = [...value.slice(0, selectionEnd)].length;
    this.#edit(value, start, end, Math.ceil((end - start) / 3)); // about three characters per token
  }

  /** Rewrite a span of a text, given in code points, as the server counts them. */
  async #edit(text, start, end, tokens) {
    if (this.stop) return;
    const characters = [...text];
    const recording = new Recording({
      before: characters.slice(0, start).join(""),
      after: characters.slice(end).join(""),
      hole: true,
      label: `span · ${this.settings.label}`,
    });
    const changed = await this.#run(
      "/v1/edits",
      { input: text, span: [start, end], max_tokens: maxTokensFor(tokens), ...this.#common() },
      recording,
      (choice) => {
        recording.replacement = choice.replacement;
        return choice.text;
      },
    );
    if (changed === null) return;
    recording.filledWith(recording.replacement);
    this.panel.refresh();
    this.#change(changed);
  }

  /** Run and show a request. Return the text that `read` builds from the choices, or null if the run failed. */
  async #run(path, body, recording, read) {
    let text = "";
    this.stop = new AbortController();
    this.complaint.textContent = "";
    this.#drawButtons();
    this.panel.recording = recording;
    await record(path, body, {
      signal: this.stop.signal,
      recording,
      watch: (event) => {
        for (const choice of event.choices) text = read(choice, text);
        this.panel.refresh();
      },
    });
    this.stop = null;
    this.panel.refresh();
    this.runs.add(recording);
    this.complaint.textContent = recording.trouble ?? "";
    this.#drawButtons();
    return recording.trouble ? null : text;
  }
}

customElements.define("write-view", WriteView);

// <write-view>: an editor. Without a hole the text goes on at its end; with […] what is missing is written there; and
// what is selected can be written anew. The canvas shows how.

import { h } from "./dom.js";
import { drawSeed, record, roomFor } from "./runner.js";
import { Recording } from "./recording.js";

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
    this.undone = []; // texts to go back to
    this.editor = h("textarea", { class: "editor", "aria-label": "Text", spellcheck: "false", rows: 14 });
    this.editor.value = EXAMPLE;
    for (const name of ["select", "keyup", "pointerup", "input"])
      this.editor.addEventListener(name, () => this.#drawButtons());
    this.settings = h("run-settings", { tokens: 64 });
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.panel = h("run-panel", {
      able: "pins span",
      empty: `Press Write: the hole ${HOLE} is filled before your eyes.`,
    });
    this.panel.addEventListener("redenoise", (event) => this.#redenoise(event.detail.pins));
    this.panel.addEventListener("rewrite", ({ detail }) => this.#edit(detail.text, detail.start, detail.end, detail.tokens));
    this.runs = h("run-list", {});
    this.runs.addEventListener("show", (event) => (this.panel.recording = event.detail.recording));
    this.append(h("div", { class: "split" }, this.#left(), h("div", { class: "column" }, this.panel, this.runs)));
    this.#drawButtons();
  }

  #left() {
    const button = (text, action, primary) =>
      h("button", { type: "button", class: primary ? "primary" : false, onclick: action }, text);
    this.write = button("Write", () => (this.stop ? this.stop.abort() : this.#write()), true);
    this.hole = button(`Insert hole ${HOLE}`, () => this.#insertHole());
    this.anew = button("Write selection anew", () => this.#rewriteSelection());
    this.undo = button("Undo", () => this.#undo());
    return h(
      "div",
      { class: "column" },
      h(
        "p",
        { class: "lead" },
        `A hole ${HOLE} is filled to fit both sides. Without one, the text goes on at its end. `,
        "Select something to write it anew.",
      ),
      h("div", { class: "row" }, this.write, this.hole, this.anew, this.undo),
      this.editor,
      this.complaint,
      h("details", { class: "options" }, h("summary", {}, "Settings"), this.settings),
    );
  }

  #drawButtons() {
    const selected = this.editor.selectionEnd > this.editor.selectionStart;
    this.write.textContent = this.stop ? "Stop" : this.editor.value.includes(HOLE) ? "Fill the hole" : "Write on";
    this.editor.readOnly = this.stop !== null; // what is typed meanwhile would be overwritten
    this.hole.disabled = this.stop !== null;
    this.anew.disabled = !selected || this.stop !== null;
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

  // --- what is asked -------------------------------------------------------------------------------------------------

  get #common() {
    return { seed: this.settings.seedOrNone ?? drawSeed(), diffusion: this.settings.diffusion };
  }

  async #write() {
    const [first, ...rest] = this.editor.value.split(HOLE);
    const common = { ...this.#common, max_tokens: this.settings.maxTokens };
    if (!rest.length)
      return this.#goOn({ prompt: first, ...common, stream_options: { include_usage: true } }, new Map());
    // Each hole sees all that is filled before it, and what is given up to the next one.
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
      const body = { prompt: text, suffix: part || "\n", ...common, stream_options: { include_usage: true } };
      const middle = await this.#run("/v1/completions", body, recording, (choice) => choice.text);
      if (middle === null) return;
      recording.filledWith(middle);
      this.panel.refresh();
      text += middle + part;
      this.#change(text + later);
    }
  }

  async #goOn(body, pins) {
    const asked = {
      ...body,
      diffusion: {
        ...body.diffusion,
        pins: Object.fromEntries([...pins].map(([at, { token }]) => [String(at), token])),
      },
    };
    const label = pins.size ? `${pins.size} pinned · ${this.settings.label}` : this.settings.label;
    const recording = new Recording({ before: body.prompt, label, pins });
    recording.body = body; // to be asked again with pins
    const added = await this.#run("/v1/completions", asked, recording, (choice, so_far) => so_far + choice.text);
    if (added !== null) this.#change(body.prompt + added);
  }

  #redenoise(pins) {
    const { recording } = this.panel;
    if (this.stop) return;
    if (recording.body) return this.#goOn(recording.body, pins);
    this.complaint.textContent =
      "Pins go with text that was written on; a hole is filled as a whole. Select words to write them anew.";
  }

  #rewriteSelection() {
    const { value, selectionStart, selectionEnd } = this.editor;
    const start = [...value.slice(0, selectionStart)].length;
    const end = [...value.slice(0, selectionEnd)].length;
    this.#edit(value, start, end, Math.ceil((end - start) / 3)); // three characters a token or so
  }

  /** Write the characters of a span of a text anew; the server counts code points. */
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
      { input: text, span: [start, end], max_tokens: roomFor(tokens), ...this.#common },
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

  /** Run and show it; the text that `read` makes of its choices, or null if it did not come to its end. */
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

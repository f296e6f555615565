// <compare-view>: the same message and seed with two settings, side by side, at the same step.

import { field, h } from "./dom.js";
import { drawer } from "./drawer.js";
import { chosenModel } from "./models.js";
import { Recording } from "./recording.js";
import { runTools } from "./run-tools.js";
import { drawSeed, record } from "./runner.js";

export class CompareView extends HTMLElement {
  connectedCallback() {
    if (this.message) return;
    this.stop = null;
    this.message = h("textarea", { rows: 2 });
    this.message.value = "How do you work?";
    this.seed = h("input", { type: "number", min: 0, value: 7 });
    this.tokens = h("input", { type: "number", min: 1, value: 64 });
    this.button = h("button", { type: "submit", class: "primary" }, "Run both");
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.verdict = h("p", { class: "lead", role: "status" });
    this.sides = ["fast", "quality"].map((preset) => this.#side(preset));
    const form = h(
      "form",
      {
        class: "column",
        onsubmit: (event) => {
          event.preventDefault();
          if (this.stop) this.stop.abort();
          else this.#run();
        },
      },
      field("Message", this.message),
      h(
        "div",
        { class: "asked" },
        field("Seed for both", this.seed),
        field("Longest answer", this.tokens),
        this.button,
      ),
      this.complaint,
      this.verdict,
    );
    this.append(
      form,
      h(
        "div",
        { class: "split" },
        this.sides.map(({ head, panel }) => h("section", { class: "compared" }, head, panel)),
      ),
    );
    for (const { settings, preset, title } of this.sides) {
      settings.preset.value = preset;
      settings.addEventListener("change", () => (title.textContent = settings.label));
      title.textContent = settings.label;
    }
  }

  #side(preset) {
    const settings = h("run-settings", { brief: true });
    const panel = h("run-panel", { empty: "Press “Run both” and watch the answer emerge from noise." });
    const side = { preset, settings, panel, title: h("h2", {}) };
    side.head = h("div", { class: "row" }, side.title, drawer("Settings", settings));
    panel.tools = runTools(panel, () => this.#request(side, this.#seed()));
    panel.addEventListener("step", (event) => this.#follow(side, event.detail.index));
    return side;
  }

  #seed() {
    return this.seed.value === "" ? drawSeed() : Number(this.seed.value);
  }

  #request({ settings }, seed) {
    const body = {
      model: chosenModel(),
      messages: [{ role: "user", content: this.message.value }],
      seed,
      max_tokens: Number(this.tokens.value) || 64,
      diffusion: settings.diffusion,
    };
    return { path: "/v1/chat/completions", body };
  }

  /** Move the other side to the same step, or to its last one, unless a run is in progress. */
  #follow(side, index) {
    const other = this.sides.find((one) => one !== side).panel;
    if (this.stop || this.moving || !other.recording?.length) return;
    this.moving = true; // ignore the step event that this causes
    other.goTo(Math.min(index, other.recording.length - 1));
    this.moving = false;
  }

  async #run() {
    this.stop = new AbortController();
    this.button.textContent = "Stop";
    this.complaint.textContent = this.verdict.textContent = "";
    const { signal } = this.stop;
    const seed = this.#seed();
    this.seed.value = seed;
    const recordings = await Promise.all(
      this.sides.map((side) => {
        const { panel, settings } = side;
        const recording = new Recording({ label: settings.label });
        panel.recording = recording;
        const { path, body } = this.#request(side, seed);
        return record(path, body, { signal, recording, watch: () => panel.refresh() });
      }),
    );
    this.stop = null;
    this.button.textContent = "Run both";
    const trouble = recordings.map((recording) => recording.trouble).find(Boolean);
    if (trouble) this.complaint.textContent = trouble;
    else this.verdict.textContent = verdict(recordings);
  }
}

/** Describe the cost of both runs, and how many tokens they share. */
function verdict([left, right]) {
  const last = (recording) => recording.textAt(recording.length - 1).flatMap(({ tokens, text }) => [...tokens.subarray(0, text)]);
  const [a, b] = [last(left), last(right)];
  const same = a.filter((token, i) => token === b[i]).length / Math.max(1, a.length, b.length);
  const costs = [left, right].map((recording) => `${recording.label}: ${recording.length} steps.`).join(" ");
  return `${costs} ${Math.round(100 * same)} % of the tokens are the same.`;
}

customElements.define("compare-view", CompareView);

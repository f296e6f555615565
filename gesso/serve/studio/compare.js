// <compare-view>: the same prompt and seed with two settings, side by side.

import { field, h } from "./dom.js";
import { drawSeed, record } from "./runner.js";
import { Recording } from "./recording.js";

export class CompareView extends HTMLElement {
  connectedCallback() {
    if (this.prompt) return;
    this.stop = null;
    this.prompt = h("textarea", { class: "code", rows: 3, spellcheck: "false" });
    this.prompt.value = "def mean(values):\n    ";
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
      field("Text to continue", this.prompt),
      h(
        "div",
        { class: "asked" },
        field("Seed for both", this.seed),
        field("Longest answer, in tokens", this.tokens),
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
        this.sides.map((side) => h("div", { class: "column" }, side.settings, side.panel)),
      ),
    );
    this.sides.forEach((side) => (side.settings.preset.value = side.preset));
  }

  #side(preset) {
    const side = {
      preset,
      settings: h("run-settings", { brief: true }),
      panel: h("run-panel", { empty: "Press Run both." }),
    };
    side.panel.addEventListener("step", (event) => this.#follow(side, event.detail.index));
    return side;
  }

  /** Move the other side to the same fraction of its steps, unless a run is in progress. */
  #follow(side, index) {
    const other = this.sides.find((one) => one !== side).panel;
    if (this.stop || this.moving || !other.recording?.length) return;
    this.moving = true; // ignore the step event that this causes
    const share = index / Math.max(1, side.panel.recording.length - 1);
    other.goTo(Math.round(share * (other.recording.length - 1)));
    this.moving = false;
  }

  async #run() {
    this.stop = new AbortController();
    this.button.textContent = "Stop";
    this.complaint.textContent = this.verdict.textContent = "";
    const seed = this.seed.value === "" ? drawSeed() : Number(this.seed.value);
    this.seed.value = seed;
    const recordings = await Promise.all(
      this.sides.map(({ settings, panel }) => {
        const recording = new Recording({ before: this.prompt.value, label: settings.label });
        panel.recording = recording;
        const body = {
          prompt: this.prompt.value,
          seed,
          max_tokens: Number(this.tokens.value) || 64,
          diffusion: settings.diffusion,
        };
        return record("/v1/completions", body, { signal: this.stop.signal, recording, watch: () => panel.refresh() });
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
  const last = (recording) => recording.textAt(recording.length - 1).flatMap((step) => [...step.tokens]);
  const [a, b] = [last(left), last(right)];
  const same = a.filter((token, i) => token === b[i]).length / Math.max(1, a.length, b.length);
  const costs = [left, right].map((recording) => `${recording.label}: ${recording.length} steps.`).join(" ");
  return `${costs} ${Math.round(100 * same)} % of the tokens are the same.`;
}

customElements.define("compare-view", CompareView);

// <run-settings>: how a text is denoised. Empty fields are left to the preset, or to the model.

import { field, h } from "./dom.js";

const SAMPLERS = ["entropy-bound", "confidence-threshold", "ancestral", "ddim", "argmax"];

export class RunSettings extends HTMLElement {
  connectedCallback() {
    if (this.preset) return;
    const choice = (names) => names.map((name) => h("option", { value: name }, name || "default"));
    this.preset = h("select", {}, choice(["", "fast", "balanced", "quality"]));
    this.steps = h("input", { type: "number", min: 1, max: 1000, placeholder: "auto" });
    this.bound = h("input", { type: "number", min: 0.001, max: 100, step: "any", placeholder: "auto" });
    this.sampler = h("select", {}, choice(["", ...SAMPLERS]));
    this.tokens = h("input", { type: "number", min: 1, max: 100000, value: this.getAttribute("tokens") ?? 128 });
    this.seed = h("input", { type: "number", min: 0, step: 1, placeholder: "chance" });
    this.candidates = h("input", { type: "checkbox", checked: true });
    const given = this.hasAttribute("brief")
      ? []
      : [field("Longest answer", this.tokens, "tokens"), field("Seed", this.seed, "the same seed, the same text")];
    this.append(
      h(
        "div",
        { class: "fields" },
        field("Preset", this.preset, "fast takes fewer steps, quality more"),
        field("Steps", this.steps, "the most a canvas may take"),
        field("Entropy bound", this.bound, "how unsure a step may be; more is faster"),
        field("Sampler", this.sampler),
        ...given,
        h(
          "div",
          { class: "field check" },
          this.#labelled(this.candidates, "Record candidates"),
          h("span", { class: "hint" }, "what else each token might be; slower"),
        ),
      ),
    );
  }

  #labelled(control, text) {
    return h("label", {}, control, ` ${text}`);
  }

  /** The `diffusion` object of a request that is to be watched. */
  get diffusion() {
    const found = { drafts: this.candidates.checked ? { candidates: 5 } : true };
    if (this.preset.value) found.preset = this.preset.value;
    if (this.steps.value) found.steps = Number(this.steps.value);
    if (this.bound.value) found.entropy_bound = Number(this.bound.value);
    if (this.sampler.value) found.sampler = this.sampler.value;
    return found;
  }

  get maxTokens() {
    return Number(this.tokens.value) || 128;
  }

  get seedOrNone() {
    return this.seed.value === "" ? null : Number(this.seed.value);
  }

  /** In a few words, for a list of runs. */
  get label() {
    const parts = [this.preset.value || "default"];
    if (this.steps.value) parts.push(`${this.steps.value} steps`);
    if (this.bound.value) parts.push(`bound ${this.bound.value}`);
    if (this.sampler.value) parts.push(this.sampler.value);
    return parts.join(", ");
  }
}

customElements.define("run-settings", RunSettings);

// <run-timeline>: a slider over all steps of a recording, in front of a graph of their mean entropy, and a play button.
//
// Event: "move" {index}.

import { h, oncePerFrame } from "./dom.js";

const SPEEDS = [1, 2, 4, 8, 16, 32]; // steps per second

export class RunTimeline extends HTMLElement {
  #recording = null;
  #index = -1;
  #timer = null;

  connectedCallback() {
    if (this.slider) return;
    this.play = h(
      "button",
      { type: "button", class: "round", "aria-label": "Play", onclick: () => this.toggle() },
      "▶",
    );
    this.graph = h("canvas", { class: "graph", "aria-hidden": "true" });
    this.slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step", disabled: true });
    this.slider.addEventListener("input", () => {
      this.stop();
      this.#move(Number(this.slider.value));
    });
    const options = SPEEDS.map((speed) => h("option", { value: speed, selected: speed === 8 }, `${speed}/s`));
    this.speed = h("select", { "aria-label": "Steps per second", onchange: () => this.#restart() }, options);
    this.append(this.play, h("div", { class: "track" }, this.graph, this.slider), this.speed);
    this.draw = oncePerFrame(() => this.#draw());
    new ResizeObserver(this.draw).observe(this.graph);
  }

  disconnectedCallback() {
    this.stop();
  }

  set recording(recording) {
    this.stop();
    this.#recording = recording;
    this.#index = -1;
    this.grown();
  }

  /** Update the slider after steps were added to the recording. */
  grown() {
    const last = (this.#recording?.length ?? 0) - 1;
    this.slider.max = Math.max(0, last);
    this.slider.disabled = last < 0;
    this.play.disabled = last < 1;
    this.draw();
  }

  get index() {
    return this.#index;
  }

  /** Set the position without an event. */
  set index(index) {
    this.#index = index;
    this.slider.value = index;
    const step = this.#recording?.steps[index];
    if (step) this.slider.setAttribute("aria-valuetext", `canvas ${step.canvas + 1}, step ${step.step}`);
  }

  get playing() {
    return this.#timer !== null;
  }

  toggle() {
    if (this.playing) return this.stop();
    if (this.#index >= this.#recording.length - 1) this.#move(0);
    this.#restart(true);
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.play.textContent = "▶";
    this.play.setAttribute("aria-label", "Play");
  }

  #restart(begin = this.playing) {
    this.stop();
    if (!begin) return;
    this.#timer = setInterval(() => this.#next(), 1000 / Number(this.speed.value));
    this.play.textContent = "❚❚";
    this.play.setAttribute("aria-label", "Pause");
  }

  #next() {
    if (this.#index >= this.#recording.length - 1) return this.stop();
    this.#move(this.#index + 1);
  }

  #move(index) {
    this.index = index;
    this.dispatchEvent(new CustomEvent("move", { detail: { index } }));
  }

  /** Draw one bar per step with the height of its mean entropy, in another colour where a canvas ends. */
  #draw() {
    const { clientWidth: width, clientHeight: height } = this.graph;
    const scale = window.devicePixelRatio || 1;
    this.graph.width = width * scale;
    this.graph.height = height * scale;
    const pen = this.graph.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this);
    const steps = this.#recording?.steps ?? [];
    const highest = steps.reduce((most, step) => Math.max(most, step.meanEntropy), 0.001);
    const slot = width / Math.max(1, steps.length);
    steps.forEach((step, i) => {
      const bar = Math.max(1.5, (height - 2) * Math.sqrt(step.meanEntropy / highest)); // square root, to keep small values visible
      pen.fillStyle = style.getPropertyValue(step.reason ? "--settled" : "--bar");
      pen.fillRect(i * slot, height - bar, Math.max(0.5, slot - (slot > 4 ? 1 : 0)), bar);
    });
  }
}

customElements.define("run-timeline", RunTimeline);

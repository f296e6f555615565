// <server-view>: the state of the server, read from /metrics every second while the view is visible.

import { getJson, getText } from "./api.js";
import { h, number } from "./dom.js";

const INTERVAL = 1000; // milliseconds
const SAMPLES = 120; // in the sparkline

export class ServerView extends HTMLElement {
  #samples = [];

  connectedCallback() {
    if (this.facts) return;
    this.facts = h("dl", { class: "tiles" });
    this.spark = h("canvas", {
      class: "spark",
      role: "img",
      "aria-label": "Generated tokens per second over the last two minutes",
    });
    this.now = h("p", { class: "hint" });
    this.engines = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Models" });
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.append(
      h(
        "div",
        { class: "column" },
        h("h2", {}, "Server"),
        this.complaint,
        this.facts,
        h("section", { class: "card" }, h("h3", { class: "label" }, "Generated tokens per second"), this.spark, this.now),
        h("section", { class: "card" }, h("h3", { class: "label" }, "Models"), this.engines),
        h(
          "p",
          { class: "hint" },
          "These figures come from ",
          h("a", { href: "/metrics" }, "/metrics"),
          ", in Prometheus's format. API reference: ",
          h("a", { href: "/docs" }, "/docs"),
          ".",
        ),
      ),
    );
    this.#watch();
  }

  async #watch() {
    if (!this.hidden && document.visibilityState === "visible") await this.#look();
    setTimeout(() => this.#watch(), INTERVAL);
  }

  opened() {
    this.#look();
  }

  async #look() {
    if (this.looking) return;
    this.looking = true;
    try {
      const [text, models] = await Promise.all([getText("/metrics"), getJson("/v1/models")]);
      this.complaint.textContent = "";
      this.#draw(parseMetrics(text), models.data);
    } catch (error) {
      this.complaint.textContent = error.message;
    }
    this.looking = false;
  }

  #draw(metrics, models) {
    const total = (name) => (metrics.get(name) ?? []).reduce((sum, sample) => sum + sample.value, 0);
    const of = (name, model) => metrics.get(name)?.find((sample) => sample.labels.model === model)?.value;
    const tokens = total("gesso_completion_tokens_total");
    this.#sample(tokens);
    const steps = total("gesso_denoising_steps_total");
    const first = total("gesso_first_text_seconds_sum") / total("gesso_first_text_seconds_count");
    const facts = {
      "requests running": total("gesso_requests_running"),
      "requests waiting": total("gesso_requests_waiting"),
      "generated tokens": tokens,
      "tokens per step": number(tokens / steps),
      "time to first text": Number.isFinite(first) ? `${number(first, 2)} s` : "–",
      "prompt tokens cached": percent(total("gesso_cached_tokens_total"), total("gesso_prompt_tokens_total")),
    };
    this.facts.replaceChildren(
      ...Object.entries(facts).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))),
    );
    const head = ["Model", "Engine", "Memory", "Batch", "Waiting", "Context"].map((name) =>
      h("th", { scope: "col" }, name),
    );
    const rows = models.map(({ id, max_model_len: context, parent }) => {
      const up = of("gesso_engine_up", id);
      const most = of("gesso_batch_limit", id);
      const cells = [
        parent ? `adapter of ${parent}` : up === 1 ? "ready" : up === 0 ? "loading" : "not started",
        memory(of("gesso_engine_memory_bytes", id)),
        most ? `${of("gesso_requests_running", id) ?? 0} of ${most}` : "–",
        String(of("gesso_requests_waiting", id) ?? 0),
        `${context} tokens`,
      ];
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, id),
        cells.map((cell) => h("td", {}, cell)),
      );
    });
    this.engines.replaceChildren(
      h("table", { class: "runs" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
    );
  }

  #sample(tokens) {
    this.#samples.push({ at: performance.now(), tokens });
    this.#samples = this.#samples.slice(-SAMPLES);
    const rates = this.#samples.slice(1).map((sample, i) => {
      const before = this.#samples[i];
      return Math.max(0, (1000 * (sample.tokens - before.tokens)) / (sample.at - before.at));
    });
    this.now.textContent = rates.length
      ? `${number(rates.at(-1), 0)} now, ${number(Math.max(...rates), 0)} at most; tokens are counted when their answer ends`
      : "measuring";
    sparkline(this.spark, rates);
  }
}

/** Parse Prometheus's text format into samples by name. */
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries(
      [...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]),
    );
    found.set(match[1], [...(found.get(match[1]) ?? []), { labels, value: Number(match[3]) }]);
  }
  return found;
}

function sparkline(canvas, values) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const most = Math.max(1, ...values);
  const x = (i) => width - ((values.length - 1 - i) * width) / (SAMPLES - 1);
  pen.beginPath();
  values.forEach((value, i) => pen.lineTo(x(i), height - 2 - (height - 6) * (value / most)));
  pen.strokeStyle = getComputedStyle(canvas).color;
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  pen.stroke();
}

function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

function memory(bytes) {
  if (!bytes) return "–";
  return bytes > 2 ** 30 ? `${number(bytes / 2 ** 30)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
}

customElements.define("server-view", ServerView);

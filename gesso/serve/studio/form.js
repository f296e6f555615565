// <form-view>: a JSON schema, and an answer that is valid under it.

import { field, h } from "./dom.js";
import { drawer } from "./drawer.js";
import { chosenModel } from "./models.js";
import { Recording } from "./recording.js";
import { runTools } from "./run-tools.js";
import { drawSeed, record } from "./runner.js";

const REQUEST = "Find a direct flight from Florence to Munich for 2 passengers in business class.";
const SCHEMA = {
  type: "object",
  properties: {
    departure: { type: "string" },
    destination: { type: "string" },
    seats: { type: "integer" },
    travel_class: { type: "string", enum: ["economy", "business"] },
    direct: { type: "boolean" },
  },
  required: ["departure", "destination", "seats", "travel_class", "direct"],
};

export class FormView extends HTMLElement {
  connectedCallback() {
    if (this.schema) return;
    this.stop = null;
    this.request = h("textarea", { rows: 3 });
    this.request.value = REQUEST;
    this.schema = h("textarea", { class: "editor", rows: 14, spellcheck: "false" });
    this.schema.value = JSON.stringify(SCHEMA, null, 2);
    this.settings = h("run-settings", { tokens: 96 });
    this.button = h("button", { type: "submit", class: "primary" }, "Answer in JSON");
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.result = h(
      "div",
      { class: "result", "aria-live": "polite" },
      h("p", { class: "hint" }, "The answer appears here. It is always valid under the schema."),
    );
    this.panel = h("run-panel", { empty: "Press “Answer in JSON” and watch the answer emerge from noise." });
    this.panel.tools = runTools(this.panel, () => this.#next());
    const [open, settings] = drawer("Settings", this.settings);
    this.append(
      settings,
      h(
        "form",
        {
          class: "split",
          onsubmit: (event) => {
            event.preventDefault();
            if (this.stop) this.stop.abort();
            else this.#run();
          },
        },
        h(
          "div",
          { class: "column" },
          field("Request", this.request),
          field("JSON schema", this.schema),
          h("div", { class: "row" }, this.button, open),
          this.complaint,
        ),
        h("div", { class: "column" }, this.result, this.panel),
      ),
    );
  }

  /** Return the request of the button. Throw an Error if the schema is not JSON. */
  #next() {
    let schema;
    try {
      schema = JSON.parse(this.schema.value);
    } catch (error) {
      throw new Error(`The schema is not JSON: ${error.message}`);
    }
    const body = {
      model: chosenModel(),
      messages: [{ role: "user", content: this.request.value }],
      response_format: { type: "json_schema", json_schema: { name: "answer", schema } },
      max_tokens: this.settings.maxTokens,
      seed: this.settings.seedOrNone ?? drawSeed(),
      diffusion: this.settings.diffusion,
    };
    return { path: "/v1/chat/completions", body };
  }

  async #run() {
    let request;
    try {
      request = this.#next();
    } catch (error) {
      this.complaint.textContent = error.message;
      return;
    }
    this.stop = new AbortController();
    this.button.textContent = "Stop";
    this.complaint.textContent = "";
    const recording = new Recording();
    this.panel.recording = recording;
    let text = "";
    await record(request.path, request.body, {
      signal: this.stop.signal,
      recording,
      watch: (event) => {
        for (const { delta } of event.choices) text += delta.content ?? "";
        this.panel.refresh();
      },
    });
    this.stop = null;
    this.button.textContent = "Answer in JSON";
    this.complaint.textContent = recording.trouble ?? "";
    if (!recording.trouble) this.#show(text);
  }

  #show(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      this.result.replaceChildren(
        h("p", { class: "complaint" }, "The answer was cut off; increase its length in Settings."),
        h("pre", { tabindex: "0" }, text),
      );
      return;
    }
    const rows = value !== null && typeof value === "object" ? Object.entries(value) : [["", value]];
    this.result.replaceChildren(
      h(
        "table",
        { class: "facts" },
        h(
          "tbody",
          {},
          rows.map(([name, part]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, name),
              h("td", {}, typeof part === "string" ? part : JSON.stringify(part)),
            ),
          ),
        ),
      ),
      h(
        "details",
        {},
        h("summary", {}, "As JSON"),
        h("pre", { tabindex: "0" }, h("code", {}, JSON.stringify(value, null, 2))),
      ),
    );
  }
}

customElements.define("form-view", FormView);

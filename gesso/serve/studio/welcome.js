// The content of an empty conversation: an introduction and starters.

import { h } from "./dom.js";

// Requests that the bundled model can answer, and a tool for the last one.
const STARTERS = ["Who are you?", "How do you work?"];
const TOOL_REQUEST = "Hey, I need to book a table: a name of Ada, a party of 4, on the date 2031-05-09.";
const TOOL = {
  type: "function",
  function: {
    name: "book_table",
    description: "Book a table.",
    parameters: {
      type: "object",
      properties: { name: { type: "string" }, party: { type: "integer" }, date: { type: "string" } },
      required: ["name", "party", "date"],
    },
  },
};

/** Return the introduction. `begin` is called with the text of a starter and its tools. */
export function welcome(begin) {
  return h(
    "div",
    { class: "welcome" },
    h("h2", {}, "Watch text emerge from noise"),
    h(
      "p",
      {},
      "All words of an answer are generated at the same time: first noise, then guesses, then settled text. ",
      "Send a message. Then click a word in the canvas to pin it, and generate the rest around it.",
    ),
    h(
      "div",
      { class: "starters" },
      STARTERS.map((text) => h("button", { type: "button", onclick: () => begin(text, []) }, text)),
      h("button", { type: "button", onclick: () => begin(TOOL_REQUEST, [TOOL]) }, "Book a table (a tool call)"),
    ),
  );
}

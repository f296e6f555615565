// What an empty conversation shows: what this is, and something to begin with.

import { h } from "./dom.js";

// What the model in the box can answer, and a tool for the last.
const FIRST = ["Who are you?", "How do you work?"];
const ERRAND = "Hey, I need to book a table: a name of Ada, a party of 4, on the date 2031-05-09.";
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

/** `begin` is called with what to ask, and the tools for it. */
export function welcome(begin) {
  return h(
    "div",
    { class: "welcome" },
    h("h2", {}, "Watch text come out of noise"),
    h(
      "p",
      {},
      "All words of an answer are written at once: first noise, then guesses, then text that stands. ",
      "Ask something; then click a word in the canvas to pin it, and have the rest written around it.",
    ),
    h(
      "div",
      { class: "starters" },
      FIRST.map((text) => h("button", { type: "button", onclick: () => begin(text, []) }, text)),
      h("button", { type: "button", onclick: () => begin(ERRAND, [TOOL]) }, "Book a table (a tool call)"),
    ),
  );
}

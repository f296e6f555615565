// One message of a conversation: its images, its text, its collapsed thoughts, and its tool calls.

import { copyButton } from "./copy.js";
import { h } from "./dom.js";
import { imagesView } from "./images.js";
import { markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Gesso", tool: "Tool", system: "System" };

export function messageView(message, { writing, onRetry, onWatch, waitsFor, onResult }) {
  const isAnswer = message.role === "assistant";
  return h(
    "article",
    { class: `message ${message.role}`, "aria-busy": writing ? "true" : false },
    h("h2", { class: "who" }, NAMES[message.role] ?? message.role),
    message.thinking
      ? h(
          "details",
          { class: "thoughts" },
          h("summary", {}, "Thoughts"),
          h("div", { class: "text" }, markdown(message.thinking)),
        )
      : null,
    message.images?.length ? imagesView(message.images) : null,
    body(message, isAnswer),
    (message.toolCalls ?? []).map((call) => callView(call, waitsFor(call) ? onResult : null)),
    isAnswer && !writing && isEmpty(message)
      ? h("p", { class: "hint" }, "The answer has no visible text; see the canvas.")
      : null,
    message.trouble ? h("p", { class: "complaint" }, message.trouble) : null,
    isAnswer && !writing ? actions(message, onRetry, onWatch) : null,
  );
}

function isEmpty(message) {
  return !message.content && !message.toolCalls?.length && !message.trouble;
}

function body(message, isAnswer) {
  const text = h("div", { class: "text" });
  if (isAnswer) text.append(markdown(message.content));
  else text.textContent = message.content;
  return text;
}

/** A tool call, with a field for its result if `onResult` is given. While the message is redrawn, it is not. */
function callView(call, onResult) {
  return h(
    "div",
    { class: "call" },
    h("div", {}, h("span", { class: "hint" }, "calls "), h("code", {}, call.function.name)),
    h("pre", { tabindex: "0" }, h("code", {}, pretty(call.function.arguments))),
    onResult ? resultForm(call, onResult) : null,
  );
}

function resultForm(call, onResult) {
  const result = h("input", {
    type: "text",
    "aria-label": `Result of ${call.function.name}`,
    placeholder: "Result of the tool",
  });
  const submit = (event) => {
    event.preventDefault();
    onResult(call, result.value);
  };
  return h("form", { class: "row", onsubmit: submit }, result, h("button", { type: "submit" }, "Answer"));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function actions(message, onRetry, onWatch) {
  const parts = [
    copyButton("Copy", () => message.content),
    h("button", { type: "button", class: "quiet", onclick: onRetry }, "Retry"),
  ];
  if (onWatch) parts.push(h("button", { type: "button", class: "quiet", onclick: onWatch }, "Show canvas"));
  const facts = [
    message.seed === undefined ? null : `seed ${message.seed}`,
    message.usage ? `${message.usage.steps} steps` : null,
  ];
  return h("div", { class: "actions" }, parts, h("span", { class: "hint" }, facts.filter(Boolean).join(" · ")));
}

// A conversation in the list beside the chat: a button that opens it, and one that deletes it.

import { h } from "./dom.js";

export function conversationItem({ title }, { current, onOpen, onDelete }) {
  const open = { type: "button", class: "conversation", "aria-current": current ? "true" : false, onclick: onOpen };
  const remove = { type: "button", class: "quiet", "aria-label": `Delete ${title}`, onclick: onDelete };
  return h("li", {}, h("button", open, title), h("button", remove, "×"));
}

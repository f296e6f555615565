// Buttons that copy text.

import { h } from "./dom.js";
import { curl, python, withoutDrafts, withoutPixels } from "./snippet.js";

const SHOWN = 1500; // milliseconds for which the button says that it has copied

/** Return a button that copies the result of `text`, or null: browsers offer the clipboard only to local or encrypted
 * pages. A result of null copies nothing. */
export function copyButton(label, text) {
  if (!navigator.clipboard) return null;
  const copy = async () => {
    const copied = text();
    if (copied === null) return;
    await navigator.clipboard.writeText(copied);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), SHOWN);
  };
  const button = h("button", { type: "button", class: "quiet", "aria-live": "polite", onclick: copy }, label);
  return button;
}

/** Return buttons that copy the request {path, body} that `request` returns. If it returns null, they copy nothing. */
export function requestButtons(request) {
  const written = (write) => () => {
    const asked = request();
    return asked && write(withoutPixels(withoutDrafts(asked)));
  };
  return [copyButton("Copy as curl", written(curl)), copyButton("Copy as Python", written(python))];
}

// A drawer: a panel that slides in over the side of the page. The browser keeps the focus inside, closes it on Escape, and
// returns the focus to the button.

import { h, uniqueId } from "./dom.js";

/** Return a button with this title, and the drawer that it opens. */
export function drawer(title, ...content) {
  const id = uniqueId("drawer");
  const dialog = h(
    "dialog",
    { class: "drawer", "aria-labelledby": id },
    h(
      "div",
      { class: "column" },
      h(
        "div",
        { class: "drawer-head" },
        h("h2", { id }, title),
        h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => dialog.close() }, "×"),
      ),
      content,
    ),
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // outside of its content
  const button = h("button", { type: "button", class: "opener", onclick: () => dialog.showModal() }, title);
  return [button, dialog];
}

// Files that the page saves and opens.

import { h } from "./dom.js";

/** Download a value as a JSON file. */
export function download(name, value) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value)], { type: "application/json" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Return a button for choosing a file, or several, which `read` is called with, and the hidden field that it needs. */
export function fileButton(label, accept, read, { multiple = false } = {}) {
  const choose = async () => {
    await read(...field.files);
    field.value = ""; // so that the same file can be chosen again
  };
  const field = h("input", { type: "file", accept, multiple, hidden: true, onchange: choose });
  return [h("button", { type: "button", class: "quiet", onclick: () => field.click() }, label), field];
}

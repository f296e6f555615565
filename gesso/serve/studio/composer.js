// The form below a conversation: the text and the images of the next message, and a button that sends it or stops the
// answer.

import { h } from "./dom.js";
import { ImageTray } from "./image-tray.js";

export class Composer {
  #busy = false;

  /** `view`: the element that images can be dropped on or pasted into. */
  constructor(view, { onSend, onStop }) {
    this.tray = new ImageTray(view);
    this.input = h("textarea", {
      rows: 2,
      "aria-label": "Message",
      placeholder: "Message (Enter to send, Shift+Enter for a new line)",
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      onSend();
    });
    this.button = h("button", { type: "submit", class: "primary" }, "Send");
    const submit = (event) => {
      event.preventDefault();
      if (this.#busy) onStop();
      else onSend();
    };
    this.element = h(
      "form",
      { onsubmit: submit },
      this.tray.element,
      h("div", { class: "composer" }, this.tray.chooser, this.input, this.button),
    );
  }

  /** The next message, or null if it is empty. */
  get message() {
    const content = this.input.value.trim();
    const images = this.tray.images;
    if (!content && !images.length) return null;
    return { role: "user", content, ...(images.length ? { images } : {}) };
  }

  set text(text) {
    this.input.value = text;
  }

  /** Whether an answer is being written, which the button stops. */
  set busy(busy) {
    this.#busy = busy;
    this.button.textContent = busy ? "Stop" : "Send";
  }

  clear() {
    this.text = "";
    this.tray.clear();
  }
}

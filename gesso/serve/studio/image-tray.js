// The images of the next message: dropped, pasted or chosen; shown as thumbnails, each with a button that removes it.

import { bus } from "./api.js";
import { field, h } from "./dom.js";
import { fileButton } from "./files.js";
import { imageOf, readPicture, thumbnailView } from "./images.js";
import { chosenModel, seesImages } from "./models.js";

const BUDGETS = [70, 140, 280, 560, 1120]; // tokens per image
const DEFAULT_BUDGET = 280;

export class ImageTray {
  #pictures = [];
  #reading = Promise.resolve();

  /** `view`: the element that files can be dropped on or pasted into. `element` shows the images, and `chooser` is a
   * button with the field that it needs. */
  constructor(view) {
    this.list = h("ul", { class: "images", "aria-label": "Images of the next message" });
    const options = BUDGETS.map((tokens) => h("option", { value: tokens }, `${tokens} tokens`));
    this.detail = h("select", { onchange: () => this.#draw() }, options);
    this.detail.value = DEFAULT_BUDGET;
    this.controls = [this.list, field("Detail", this.detail)];
    this.count = h("p", { class: "hint", role: "status" });
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.element = h("div", { class: "tray" }, this.controls, this.count, this.complaint);
    this.chooser = fileButton("+", "image/*", (...files) => this.#add(files), { multiple: true });
    for (const name of ["aria-label", "title"]) this.chooser[0].setAttribute(name, "Add images");
    bus.addEventListener("models", () => this.#offer());
    this.#offer();
    this.#listen(view);
    this.#draw();
  }

  /** Return the images with the chosen detail, as a message has them. */
  get images() {
    return this.#pictures.map((picture) => imageOf(picture, this.#tokens));
  }

  /** Resolves when all files that were added have been read. */
  get ready() {
    return this.#reading;
  }

  /** Return whether the chosen model sees the images, if there are any. Show the reason if not. */
  check() {
    const able = seesImages() || !this.#pictures.length;
    this.complaint.textContent = able ? "" : refusal();
    return able;
  }

  clear() {
    this.#pictures = [];
    this.#draw();
  }

  get #tokens() {
    return Number(this.detail.value);
  }

  /** Offer what the chosen model takes. */
  #offer() {
    this.chooser[0].hidden = !seesImages();
    this.complaint.textContent = "";
  }

  #listen(view) {
    const drop = (name, act) => view.addEventListener(name, (event) => hasFiles(event) && act(event));
    const mark = (on) => view.classList.toggle("dropping", on);
    drop("dragover", (event) => {
      event.preventDefault();
      mark(true);
    });
    drop("dragleave", (event) => mark(view.contains(event.relatedTarget)));
    drop("drop", (event) => {
      event.preventDefault(); // the browser would leave the page for the file
      mark(false);
      this.#add(event.dataTransfer.files);
    });
    view.addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      const isText = types.includes("text/plain") && types.includes("text/html"); // office programs add a picture of it
      if (!files.length || isText) return;
      event.preventDefault(); // a file manager adds the name of the file
      this.#add(files);
    });
  }

  #add(files) {
    const given = [...files]; // the list is emptied after the event
    this.#reading = this.#reading.then(() => this.#read(given));
    return this.#reading;
  }

  async #read(files) {
    if (!seesImages()) {
      this.complaint.textContent = refusal();
      return;
    }
    const read = await Promise.allSettled(files.map(readPicture));
    this.#pictures.push(...read.flatMap(({ value }) => value ?? []));
    this.complaint.textContent = read.flatMap(({ reason }) => reason?.message ?? []).join(" ");
    this.#draw();
  }

  #remove(index) {
    this.#pictures.splice(index, 1);
    this.#draw();
    const buttons = this.list.querySelectorAll("button");
    (buttons[Math.min(index, buttons.length - 1)] ?? this.chooser[0]).focus(); // the pressed button is gone
  }

  #draw() {
    const count = this.#pictures.length;
    for (const control of this.controls) control.hidden = !count;
    const images = count === 1 ? "1 image" : `${count} images`;
    this.count.textContent = count ? `${images}, at most ${count * this.#tokens} tokens` : "";
    this.list.replaceChildren(...this.#pictures.map((picture, index) => this.#item(picture, index)));
  }

  #item(picture, index) {
    const label = `Remove image ${index + 1}, ${picture.name}`;
    const remove = { type: "button", "aria-label": label, onclick: () => this.#remove(index) };
    return h("li", {}, thumbnailView(picture), h("button", remove, "×"));
  }
}

function hasFiles(event) {
  return event.dataTransfer.types.includes("Files");
}

function refusal() {
  return `${chosenModel() ?? "The model"} sees no images. Choose another model, or send text only.`;
}

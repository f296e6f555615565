// <canvas-view>: the text of a recording at one moment, a cell a token, coloured by entropy; settled tokens solid.
//
// It is a list box for assistive technology and the keyboard: arrows move, Shift and arrows select a span, Enter pins.
// Cells are made once and only changed where what they show changes, so that moving to another step is cheap.
//
// Events: "inspect" {position}, "pick" {position}, "select" {start, end}.

import { h, uniqueId } from "./dom.js";
import { levelOf } from "./recording.js";

const WILD = 4; // a line break of noise at this level or above breaks no line: the text would jump with every step

export class CanvasView extends HTMLElement {
  #recording = null;
  #index = -1;
  #cells = [];
  #blocks = new Map(); // the cells of a canvas stand in an element of their own, by its first position: gone in one move
  #length = 0; // how many cells are on the page
  #shown = []; // the step each block of cells shows
  #active = -1;
  #anchor = -1;
  #selection = null;
  #pins = new Map();

  connectedCallback() {
    if (this.list) return;
    this.cellName = uniqueId("token");
    this.before = h("span", { class: "given" });
    this.after = h("span", { class: "given" });
    this.list = h("div", {
      class: "cells",
      role: "listbox",
      tabindex: "0",
      "aria-multiselectable": "true",
      "aria-label": "Tokens of the canvas",
    });
    this.list.addEventListener("pointerover", (event) => this.#inspect(this.#positionOf(event)));
    this.list.addEventListener("pointerdown", (event) => this.#press(event));
    this.list.addEventListener("pointermove", (event) => this.#drag(event));
    this.list.addEventListener("pointerup", (event) => this.#release(event));
    this.list.addEventListener("keydown", (event) => this.#key(event));
    this.append(this.before, this.list, this.after);
    this.dataset.mode ||= "text";
  }

  get recording() {
    return this.#recording;
  }

  set recording(recording) {
    this.#recording = recording;
    this.#index = -1;
    this.#shown = [];
    this.#active = -1;
    this.selection = null;
    this.before.textContent = "";
    this.after.textContent = recording?.after ?? "";
    this.list.replaceChildren();
    this.#blocks.clear();
    this.#cells = [];
    this.#length = 0;
  }

  /** Which step is shown. */
  get index() {
    return this.#index;
  }

  set index(index) {
    this.#index = index;
    const steps = this.#recording && index >= 0 ? this.#recording.textAt(index) : [];
    steps.forEach((step, block) => {
      if (this.#shown[block] !== step) this.#show(step);
    });
    this.#shown = steps;
    const last = steps.at(-1);
    const before = this.#recording
      ? this.#recording.before.slice(0, this.#recording.before.length - this.#recording.repeated)
      : "";
    if (this.before.textContent !== before) this.before.textContent = before;
    this.#trim(last ? last.start + last.tokens.length : 0);
  }

  /** Pinned tokens by position; they are marked, whatever the recording holds. */
  set pins(pins) {
    for (const position of new Set([...this.#pins.keys(), ...pins.keys()])) {
      this.#cells[position]?.classList.toggle("pin", pins.has(position));
    }
    this.#pins = new Map(pins);
  }

  get selection() {
    return this.#selection;
  }

  /** A span of positions, {start, end}, or null. */
  set selection(selection) {
    const old = this.#selection;
    this.#selection = selection;
    for (let i = old?.start ?? 0; i < (old?.end ?? 0); i += 1) this.#cells[i]?.setAttribute("aria-selected", "false");
    for (let i = selection?.start ?? 0; i < (selection?.end ?? 0); i += 1)
      this.#cells[i]?.setAttribute("aria-selected", "true");
  }

  // --- cells ---------------------------------------------------------------------------------------------------------

  #show(step) {
    const block = this.#block(step.start);
    if (!block.parentNode) this.list.append(block);
    for (let i = 0; i < step.tokens.length; i += 1) {
      const position = step.start + i;
      const cell = this.#cells[position] ?? this.#grow(position, block);
      const piece = this.#recording.piece(step.tokens[i]);
      const special = this.#recording.special.has(step.tokens[i]);
      const fill = special && i > 0 && step.tokens[i] === step.tokens[i - 1]; // what only fills the canvas
      const level = levelOf(step.entropy[i]);
      const breaks = piece.includes("\n") && level < WILD;
      const text = fill ? "·" : breaks ? piece : piece.replaceAll("\n", "↵");
      if (cell.firstChild.data !== text) this.#write(cell, text);
      const kind = (fill ? " special fill" : special ? " special" : "") + (breaks ? " newline" : "");
      const name = `t l${level} ${String.fromCharCode(step.states[i])}${kind}`;
      if (cell.name !== name) this.#rename(cell, name, position);
    }
  }

  #write(cell, text) {
    cell.firstChild.data = text;
    if (!text.trim()) cell.setAttribute("aria-label", text.includes("\n") ? "line break" : "space");
    else if (cell.hasAttribute("aria-label")) cell.removeAttribute("aria-label");
  }

  #rename(cell, name, position) {
    cell.name = name;
    cell.className = this.#pins.has(position) ? `${name} pin` : name;
    if (position === this.#active) cell.classList.add("active");
  }

  #block(start) {
    if (!this.#blocks.has(start)) this.#blocks.set(start, h("span", { role: "presentation", class: "block" }));
    return this.#blocks.get(start);
  }

  #grow(position, block) {
    const cell = h("span", { role: "option", id: `${this.cellName}-${position}`, "aria-selected": "false" });
    cell.append(document.createTextNode(""));
    cell.position = position;
    this.#cells[position] = cell;
    block.append(cell);
    return cell;
  }

  /** Take away canvases that begin at `length` or later; they are kept for when they are shown again. */
  #trim(length) {
    this.#length = length;
    for (const [start, block] of this.#blocks) if (start >= length) block.remove();
  }

  // --- hand and keys -------------------------------------------------------------------------------------------------

  #positionOf(event) {
    return event.target.closest?.("[role=option]")?.position ?? -1;
  }

  #inspect(position) {
    if (position < 0) return;
    this.#tell("inspect", { position });
  }

  #press(event) {
    const position = this.#positionOf(event);
    if (position < 0 || event.button !== 0) return;
    this.#activate(position);
    this.#anchor = event.shiftKey && this.#anchor >= 0 ? this.#anchor : position;
    this.pressed = true;
    this.dragged = event.shiftKey;
    if (event.shiftKey) this.#span(position);
  }

  #drag(event) {
    const position = this.#positionOf(event);
    if (!this.pressed || position < 0 || (position === this.#anchor && !this.dragged)) return;
    this.dragged = true;
    this.#span(position);
  }

  #release(event) {
    if (!this.pressed) return;
    this.pressed = false;
    const position = this.#positionOf(event);
    if (this.dragged) this.#tell("select", this.#selection);
    else if (position >= 0) this.#pick(position);
  }

  #pick(position) {
    this.selection = null;
    this.#tell("select", null);
    this.#tell("pick", { position });
  }

  #span(position) {
    this.selection = { start: Math.min(this.#anchor, position), end: Math.max(this.#anchor, position) + 1 };
  }

  #key(event) {
    const at = Math.max(0, this.#active);
    const to = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => this.#nextLine(at, 1),
      ArrowUp: () => this.#nextLine(at, -1),
      Home: () => 0,
      End: () => this.#length - 1,
    }[event.key]?.();
    if (to !== undefined && this.#length) {
      const position = Math.min(this.#length - 1, Math.max(0, this.#active < 0 ? 0 : to));
      if (event.shiftKey) {
        if (!this.#selection) this.#anchor = at;
        this.#span(position);
        this.#tell("select", this.#selection);
      }
      this.#activate(position);
      this.#inspect(position);
    } else if ((event.key === "Enter" || event.key === " ") && this.#active >= 0) {
      this.#anchor = this.#active;
      this.#pick(this.#active);
    } else if (event.key === "Escape") {
      this.selection = null;
      this.#tell("select", null);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** The cell below or above, by where it stands on the page. */
  #nextLine(from, direction) {
    const here = this.#cells[from].getBoundingClientRect();
    for (let i = from + direction; i >= 0 && i < this.#length; i += direction) {
      const there = this.#cells[i].getBoundingClientRect();
      const otherLine = direction > 0 ? there.top >= here.bottom - 2 : there.bottom <= here.top + 2;
      const passed = direction > 0 ? there.right > here.left : there.left < here.right;
      if (otherLine && passed) return i;
    }
    return from;
  }

  #activate(position) {
    this.#cells[this.#active]?.classList.remove("active");
    this.#active = position;
    const cell = this.#cells[position];
    cell.classList.add("active");
    cell.scrollIntoView({ block: "nearest" });
    this.list.setAttribute("aria-activedescendant", cell.id);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

customElements.define("canvas-view", CanvasView);

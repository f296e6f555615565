// <canvas-view>: the text of a recording at one step, one cell per token, coloured by entropy; settled tokens are solid.
//
// It is a list box for assistive technology and the keyboard: arrows move, Shift and arrows select a span, Enter pins.
// Cells are created once and updated only where their content changes, so that moving to another step is cheap. The last
// step of a canvas has cells of its own, separate from those of earlier steps, so returning to it changes nothing.
//
// Events: "inspect" {position}, "pick" {position}, "select" {start, end}.

import { h, uniqueId } from "./dom.js";
import { levelOf } from "./recording.js";

const NOISE_LEVEL = 4; // from this entropy level on, line breaks are not applied: the text would jump at every step

export class CanvasView extends HTMLElement {
  #recording = null;
  #index = -1;
  #done = new Map(); // blocks of finished canvases by their last step
  #open = new Map(); // blocks for all other steps by the start position of the canvas
  #shown = []; // blocks on the page
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
    this.#active = -1;
    this.#anchor = -1;
    this.selection = null;
    this.before.textContent = "";
    this.after.textContent = recording?.after ?? "";
    this.list.replaceChildren();
    this.list.removeAttribute("aria-activedescendant");
    this.#done.clear();
    this.#open.clear();
    this.#shown = [];
  }

  /** Index of the step that is shown. */
  get index() {
    return this.#index;
  }

  set index(index) {
    this.#index = index;
    const steps = this.#recording && index >= 0 ? this.#recording.textAt(index) : [];
    const blocks = steps.map((step) => this.#blockFor(step));
    for (const block of this.#shown) if (!blocks.includes(block)) block.element.remove();
    blocks.forEach((block, i) => {
      if (!block.element.parentNode) this.list.insertBefore(block.element, this.list.children[i] ?? null);
    });
    this.#shown = blocks;
    const before = this.#recording?.textBefore ?? "";
    if (this.before.textContent !== before) this.before.textContent = before;
  }

  /** Pinned tokens by position. They are marked independently of the recording. */
  set pins(pins) {
    for (const position of new Set([...this.#pins.keys(), ...pins.keys()])) {
      for (const cell of this.#cellsOf(position)) cell.classList.toggle("pin", pins.has(position));
    }
    this.#pins = new Map(pins);
  }

  get selection() {
    return this.#selection;
  }

  /** A span of positions, {start, end}, or null. */
  set selection(selection) {
    this.#select(this.#selection, "false");
    this.#selection = selection;
    this.#select(selection, "true");
  }

  #select(span, selected) {
    for (let position = span?.start ?? 0; position < (span?.end ?? 0); position += 1)
      for (const cell of this.#cellsOf(position)) cell.setAttribute("aria-selected", selected);
  }

  // --- cells ---------------------------------------------------------------------------------------------------------

  /** Return the block that shows a step. When a canvas ends, its open block becomes that of its last step. */
  #blockFor(step) {
    let block = this.#done.get(step) ?? this.#open.get(step.start);
    if (block?.step === step) return block;
    block ??= { element: h("span", { role: "presentation", class: "block" }), start: step.start, cells: [] };
    this.#write(block, step);
    if (step.reason) {
      this.#open.delete(step.start);
      this.#done.set(step, block);
    } else {
      this.#open.set(step.start, block);
    }
    return block;
  }

  #write(block, step) {
    block.step = step;
    for (let i = 0; i < step.tokens.length; i += 1) {
      const position = step.start + i;
      const cell = block.cells[i] ?? this.#grow(position, block);
      const piece = this.#recording.piece(step.tokens[i]);
      const special = this.#recording.special.has(step.tokens[i]);
      const fill = special && i > 0 && step.tokens[i] === step.tokens[i - 1]; // padding after the text
      const level = levelOf(step.entropy[i]);
      const breaks = piece.includes("\n") && level < NOISE_LEVEL;
      const text = fill ? "·" : breaks ? piece : piece.replaceAll("\n", "↵");
      if (cell.firstChild.data !== text) this.#rewrite(cell, text);
      const kind = (fill ? " special fill" : special ? " special" : "") + (breaks ? " newline" : "");
      const name = `t l${level} ${String.fromCharCode(step.states[i])}${kind}`;
      if (cell.name !== name) this.#rename(cell, name, position);
    }
    while (block.cells.length > step.tokens.length) block.cells.pop().remove();
  }

  #rewrite(cell, text) {
    cell.firstChild.data = text;
    if (!text.trim()) cell.setAttribute("aria-label", text.includes("\n") ? "line break" : "space");
    else if (cell.hasAttribute("aria-label")) cell.removeAttribute("aria-label");
  }

  #rename(cell, name, position) {
    cell.name = name;
    cell.className = this.#pins.has(position) ? `${name} pin` : name;
    if (position === this.#active) cell.classList.add("active");
  }

  #grow(position, block) {
    const selected = this.#selection && position >= this.#selection.start && position < this.#selection.end;
    const cell = h("span", {
      role: "option",
      id: `${this.cellName}-${position}`,
      "aria-selected": String(Boolean(selected)),
    });
    cell.append(document.createTextNode(""));
    cell.position = position;
    block.cells.push(cell);
    block.element.append(cell);
    return cell;
  }

  /** Number of cells on the page. */
  get #length() {
    const last = this.#shown.at(-1);
    return last ? last.start + last.cells.length : 0;
  }

  /** Return the cell of a position on the page, or undefined beyond the end of the text. */
  #cellAt(position) {
    const block = this.#shown.findLast(({ start }) => start <= position);
    return block?.cells[position - block.start];
  }

  /** Return all cells of a position, visible or not, because marks apply to all of them. */
  #cellsOf(position) {
    return [...this.#done.values(), ...this.#open.values()]
      .map(({ start, cells }) => cells[position - start])
      .filter(Boolean);
  }

  // --- pointer and keyboard ------------------------------------------------------------------------------------------

  #positionOf(event) {
    return event.target.closest?.("[role=option]")?.position ?? -1;
  }

  #inspect(position) {
    if (position < 0) return;
    this.#emit("inspect", { position });
  }

  #press(event) {
    const position = this.#positionOf(event);
    if (position < 0 || event.button !== 0) return;
    this.#activate(position);
    this.#anchor = event.shiftKey && this.#anchor >= 0 ? this.#anchor : position;
    this.pressed = true;
    this.dragged = event.shiftKey;
    if (event.shiftKey) this.#span(position);
    const pressing = new AbortController(); // the drag may end outside the canvas
    for (const name of ["pointerup", "pointercancel"]) {
      const end = (ended) => (pressing.abort(), this.#release(ended));
      window.addEventListener(name, end, { signal: pressing.signal });
    }
  }

  #drag(event) {
    const position = this.#positionOf(event);
    if (!this.pressed || position < 0 || (position === this.#anchor && !this.dragged)) return;
    this.dragged = true;
    this.#span(position);
  }

  #release(event) {
    this.pressed = false;
    if (this.dragged) this.#emit("select", this.#selection);
    else if (event.type === "pointerup" && this.#positionOf(event) === this.#anchor) this.#pick(this.#anchor);
  }

  #pick(position) {
    this.selection = null;
    this.#emit("select", null);
    this.#emit("pick", { position });
  }

  #span(position) {
    this.selection = { start: Math.min(this.#anchor, position), end: Math.max(this.#anchor, position) + 1 };
  }

  #key(event) {
    if (!this.#length) return;
    const last = this.#length - 1;
    const at = Math.min(last, Math.max(0, this.#active)); // an earlier step may have fewer canvases
    const to = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => this.#nextLine(at, 1),
      ArrowUp: () => this.#nextLine(at, -1),
      Home: () => 0,
      End: () => last,
    }[event.key]?.();
    if (to !== undefined) {
      const position = Math.min(last, Math.max(0, this.#active < 0 ? 0 : to));
      if (event.shiftKey) {
        if (!this.#selection) this.#anchor = at;
        this.#span(position);
        this.#emit("select", this.#selection);
      }
      this.#activate(position);
      this.#inspect(position);
    } else if ((event.key === "Enter" || event.key === " ") && this.#active >= 0) {
      this.#anchor = at;
      this.#pick(at);
    } else if (event.key === "Escape") {
      this.selection = null;
      this.#emit("select", null);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Return the cell below or above by its position on the page. */
  #nextLine(from, direction) {
    const here = this.#cellAt(from).getBoundingClientRect();
    for (let i = from + direction; i >= 0 && i < this.#length; i += direction) {
      const there = this.#cellAt(i).getBoundingClientRect();
      const otherLine = direction > 0 ? there.top >= here.bottom - 2 : there.bottom <= here.top + 2;
      const passed = direction > 0 ? there.right > here.left : there.left < here.right;
      if (otherLine && passed) return i;
    }
    return from;
  }

  #activate(position) {
    for (const cell of this.#cellsOf(this.#active)) cell.classList.remove("active");
    this.#active = position;
    for (const cell of this.#cellsOf(position)) cell.classList.add("active");
    const cell = this.#cellAt(position);
    cell.scrollIntoView({ block: "nearest" });
    this.list.setAttribute("aria-activedescendant", cell.id);
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

customElements.define("canvas-view", CanvasView);

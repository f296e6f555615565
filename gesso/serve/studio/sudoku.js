// <sudoku-view>: a board for a puzzle, and the model's answer as its cells settle.
//
// The page only checks the rules: it marks cells that break them and never fills in a digit.

import { bus, postJson } from "./api.js";
import { requestButtons } from "./copy.js";
import { field, h } from "./dom.js";
import { chosenModel, servedModels } from "./models.js";
import { drawSeed, record } from "./runner.js";
import { Recording, isSettled } from "./recording.js";

const MODEL = "gesso-sudoku";
const MAX_TOKENS = 256; // a whole canvas, as in training
const FRAME = 160; // minimum milliseconds per step; the model is faster than the eye
const CELLS = Array.from({ length: 81 }, (_, i) => i);
const PUZZLES = {
  "30 clues": "530070000600195000098000060800060003400803001700020006060000280000419005000080079",
  "36 clues": "080205004050349608000180000835090000902004005000018930160400270520007040090020003",
  "24 clues": "000005004050300600000180000835090000002004005000010030160000200520007000090000003",
  "17 clues": "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
};
const UNITS = CELLS.slice(0, 9).flatMap((n) => [
  CELLS.filter((cell) => Math.floor(cell / 9) === n),
  CELLS.filter((cell) => cell % 9 === n),
  CELLS.filter((cell) => 3 * Math.floor(cell / 27) + Math.floor((cell % 9) / 3) === n),
]);

export class SudokuView extends HTMLElement {
  connectedCallback() {
    if (this.cells) return;
    this.stop = null;
    this.positions = null;
    this.cells = CELLS.map((cell) => this.#cell(cell));
    this.timeline = document.createElement("run-timeline");
    this.timeline.addEventListener("move", (event) => this.#show(event.detail.index));
    this.verdict = h("p", { class: "verdict", role: "status" });
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.pick = h(
      "select",
      { onchange: () => this.#set(PUZZLES[this.pick.value]) },
      Object.keys(PUZZLES).map((name) => h("option", {}, name)),
    );
    this.paste = h("input", {
      type: "text",
      placeholder: "81 digits, 0 or . for an empty cell",
      onchange: () => this.#paste(),
    });
    this.seed = h("input", { type: "number", min: 0, placeholder: "random" });
    this.button = h(
      "button",
      { type: "button", class: "primary", onclick: () => (this.stop ? this.stop.abort() : this.#solve()) },
      "Solve",
    );
    this.model = h("p", { class: "hint" });
    const rows = Array.from({ length: 9 }, (_, row) =>
      h(
        "div",
        { role: "row" },
        this.cells.slice(9 * row, 9 * row + 9).map((cell) => h("div", { role: "gridcell" }, cell)),
      ),
    );
    this.board = h("div", { class: "board", role: "grid", "aria-label": "Sudoku" }, rows);
    this.append(
      h(
        "div",
        { class: "sudoku" },
        h(
          "div",
          { class: "column" },
          this.board,
          h(
            "div",
            { class: "row" },
            this.button,
            h("button", { type: "button", onclick: () => this.#set("0".repeat(81)) }, "Clear"),
          ),
          this.timeline,
          this.verdict,
          this.complaint,
        ),
        h(
          "div",
          { class: "column" },
          h(
            "p",
            { class: "lead" },
            "All empty cells are filled at the same time. Type, paste or choose a puzzle. ",
            "Fewer clues take more steps.",
          ),
          field("Puzzle", this.pick),
          field("Paste a puzzle", this.paste),
          field("Seed", this.seed),
          this.model,
          h("div", { class: "run-tools" }, requestButtons(() => this.recording?.request ?? this.#next())),
        ),
      ),
    );
    bus.addEventListener("models", () => (this.model.textContent = `The model of this view is ${sudokuModel()}.`));
    this.#set(PUZZLES["30 clues"]);
  }

  // --- the puzzle ----------------------------------------------------------------------------------------------------

  #cell(cell) {
    const input = h("input", {
      type: "text",
      inputmode: "numeric",
      maxlength: 1,
      autocomplete: "off",
      "aria-label": `Row ${Math.floor(cell / 9) + 1}, column ${(cell % 9) + 1}`,
    });
    input.addEventListener("input", () => {
      this.puzzle[cell] = /[1-9]/.test(input.value) ? input.value : "0";
      this.#reset();
    });
    input.addEventListener("focus", () => input.select());
    input.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 9, ArrowUp: -9 }[event.key];
      if (!by || !this.cells[cell + by]) return;
      event.preventDefault();
      this.cells[cell + by].focus();
    });
    return input;
  }

  #set(text) {
    this.puzzle = [...text];
    this.#reset();
  }

  #paste() {
    const text = this.paste.value.replaceAll(/\s/g, "").replaceAll(".", "0");
    if (/^[0-9]{81}$/.test(text)) this.#set(text);
    else this.complaint.textContent = `A puzzle is 81 digits, 0 or . for an empty cell; this text has ${text.length} characters.`;
  }

  #reset() {
    this.stop?.abort();
    this.timeline.recording = this.recording = null;
    this.verdict.textContent = this.complaint.textContent = "";
    this.#paint(
      this.puzzle,
      CELLS.map(() => false),
    );
  }

  // --- the answer ----------------------------------------------------------------------------------------------------

  async #solve() {
    const wrong = repeated(this.puzzle);
    if (wrong.size) {
      this.complaint.textContent = "The puzzle breaks the rules in the red cells.";
      return;
    }
    const { path, body } = this.#next();
    if (servedModels().length && !servedModels().some(({ id }) => id === body.model)) {
      this.complaint.textContent = `This server does not have ${MODEL}. Start it with \`gesso serve\` or \`gesso serve -m ${MODEL}\`.`;
      return;
    }
    this.stop = new AbortController();
    this.button.textContent = "Stop";
    this.complaint.textContent = "";
    this.verdict.textContent = "The Sudoku model is running; the first run has to load it.";
    const recording = (this.recording = new Recording());
    const { signal } = this.stop;
    const asked = this.#ask(path, body, recording, signal);
    const seen = this.#watch(recording, signal, asked);
    await asked;
    await seen;
    this.stop = null;
    this.button.textContent = "Solve";
    this.complaint.textContent = recording.trouble ?? "";
    this.verdict.textContent = "";
    if (recording.trouble || !recording.length) return;
    this.timeline.index = recording.length - 1; // the user may have moved to another step
    this.#show(recording.length - 1);
    this.verdict.textContent = this.#judge();
  }

  /** Return the request of the button. */
  #next() {
    const seed = this.seed.value === "" ? drawSeed() : Number(this.seed.value);
    const prompt = this.puzzle.join(" ");
    const body = { model: sudokuModel(), prompt, max_tokens: MAX_TOKENS, seed, diffusion: { drafts: true } };
    return { path: "/v1/completions", body };
  }

  async #ask(path, body, recording, signal) {
    const { model, prompt } = body;
    try {
      // The answer has the format of the puzzle, so its cells are at the same positions.
      const { count } = await postJson("/tokenize", { model, prompt, add_special_tokens: false }, signal);
      this.positions = CELLS.map((cell) => Math.round((cell * (count - 1)) / 80));
    } catch (error) {
      recording.trouble = signal.aborted ? "stopped" : error.message;
      return;
    }
    await record(path, body, { signal, recording });
  }

  /** Show the steps as they arrive, at a visible pace. */
  async #watch(recording, signal, asked) {
    let ended = false;
    asked.then(() => (ended = true));
    this.timeline.recording = recording;
    let index = -1;
    while (!signal.aborted && !(ended && index >= recording.length - 1)) {
      if (index < recording.length - 1) {
        index += 1;
        this.timeline.grown();
        this.timeline.index = index;
        this.#show(index);
      }
      await new Promise((resolve) => setTimeout(resolve, FRAME));
    }
    this.timeline.grown();
  }

  #show(index) {
    const step = this.recording.steps[index];
    const digits = this.positions.map((position, cell) => {
      const text = this.recording.piece(step.tokens[position]).trim();
      return /^[1-9]$/.test(text) ? text : this.puzzle[cell];
    });
    this.#paint(
      digits,
      this.positions.map((position) => isSettled(step.states[position])),
    );
  }

  #paint(digits, settled) {
    this.shown = digits;
    const claims = digits.map((digit, cell) => (settled[cell] || this.puzzle[cell] !== "0" ? digit : "0"));
    const wrong = repeated(claims);
    for (const cell of CELLS) {
      const clue = this.puzzle[cell] !== "0";
      const kept = !clue || digits[cell] === this.puzzle[cell];
      this.cells[cell].value = digits[cell] === "0" ? "" : digits[cell];
      this.cells[cell].className = [
        clue ? "clue" : settled[cell] ? "settled" : digits[cell] === "0" ? "" : "guess",
        wrong.has(cell) || !kept ? "wrong" : "",
      ]
        .join(" ")
        .trim();
      this.cells[cell].setAttribute("aria-invalid", String(wrong.has(cell) || !kept));
    }
  }

  #judge() {
    const { length, seconds } = this.recording;
    const steps = `${length} step${length === 1 ? "" : "s"}, ${seconds.toFixed(2)} s`;
    const broken = repeated(this.shown).size;
    const lost = CELLS.filter((cell) => this.puzzle[cell] !== "0" && this.shown[cell] !== this.puzzle[cell]).length;
    const empty = this.shown.filter((digit) => digit === "0").length;
    if (!broken && !lost && !empty) return `Solved in ${steps}.`;
    return `Not solved after ${steps}: ${broken} cells break the rules, ${lost} clues were changed, ${empty} cells are empty.`;
  }
}

/** Return the chosen model if it is the Sudoku model or an adapter of it, otherwise the Sudoku model. */
function sudokuModel() {
  const chosen = servedModels().find(({ id }) => id === chosenModel());
  return chosen?.parent === MODEL ? chosen.id : MODEL;
}

/** Return the cells whose digit is repeated in their row, column or box. */
export function repeated(digits) {
  const found = new Set();
  for (const unit of UNITS) {
    for (const cell of unit) {
      if (digits[cell] !== "0" && unit.some((other) => other !== cell && digits[other] === digits[cell]))
        found.add(cell);
    }
  }
  return found;
}

customElements.define("sudoku-view", SudokuView);

// All steps of all canvases of a run in typed arrays, with the text of each token stored once.
//
// A step holds one canvas: positions `start` to `start + tokens.length` of the new text. The text before it is that of the
// last steps of earlier canvases; `previous` is the index of the nearest one.

const OPEN = ".".charCodeAt(0);

/** Bounds in nats of nine entropy levels. The first level is practically certain. */
const LEVELS = [0.005, 0.05, 0.2, 0.5, 1, 2, 3.5, 5];

export function levelOf(entropy) {
  let level = 0;
  while (level < LEVELS.length && entropy >= LEVELS[level]) level += 1;
  return level;
}

export class Recording {
  /** `before` and `after` are the given texts around the new one. `hole`: whether the text fills a hole.
   * `pins`: the pins of the request. `note`: what the canvas says about the run. */
  constructor({ before = "", after = "", label = "", hole = false, pins = new Map(), note = "" } = {}) {
    this.before = before;
    this.after = after;
    this.hole = hole;
    this.label = label;
    this.pins = pins;
    this.note = note;
    this.request = null; // {path, body}
    this.replayed = false; // whether it was saved, so that its request is unknown
    this.pieces = new Map();
    this.special = new Set(); // tokens that are not part of the text
    this.steps = [];
    this.began = performance.now();
    this.repeated = 0; // characters at the end of `before` that the new text repeats
    this.usage = null;
    this.finish = null;
    this.seed = null;
    this.trouble = null;
  }

  /** Return the recording of a saved run: `prompt` and `drafts` are required. */
  static from({ prompt, drafts, seed = null, finish = null, repeated, ...options }) {
    const recording = new Recording({ ...options, before: prompt });
    for (const draft of drafts) recording.add(draft, draft.at);
    return Object.assign(recording, { seed, finish, repeated: repeated ?? recording.repeated, replayed: true });
  }

  /** Return the run for a file. Texts of tokens and special tokens are all in the first draft. */
  toJSON() {
    const { before: prompt, after, hole, label, seed, finish, repeated } = this;
    const drafts = this.steps.map((step, i) => ({
      run: step.run,
      canvas: step.canvas,
      attempt: step.attempt,
      start: step.start,
      step: step.step,
      steps: step.most,
      reason: step.reason,
      at: rounded(step.at),
      text: "",
      tokens: [...step.tokens],
      entropy: [...step.entropy].map(rounded),
      states: String.fromCharCode(...step.states),
      candidates: Array.from(step.tokens, (_, at) =>
        this.candidatesOf(step, at).map(({ token, share }) => [token, rounded(share)]),
      ),
      pieces: i ? {} : Object.fromEntries(this.pieces),
      special: i ? [] : [...this.special],
    }));
    return { prompt, after, hole, label, seed, finish, repeated, drafts };
  }

  /** Add one `draft` of a stream (docs/guides/serving.md), `at` seconds after the start of the run. */
  add(draft, at = (performance.now() - this.began) / 1000) {
    for (const [token, piece] of Object.entries(draft.pieces)) this.pieces.set(Number(token), piece);
    for (const token of draft.special) this.special.add(token);
    const count = draft.tokens.length;
    const width = draft.candidates?.[0]?.length ?? 0;
    const step = {
      run: draft.run,
      canvas: draft.canvas,
      attempt: draft.attempt,
      start: draft.start,
      step: draft.step,
      most: draft.steps,
      reason: draft.reason,
      at,
      previous: this.#lastOf(draft.run, draft.canvas - 1),
      tokens: Uint32Array.from(draft.tokens),
      entropy: Float32Array.from(draft.entropy),
      states: Uint8Array.from(draft.states, (letter) => letter.charCodeAt(0)),
      width,
      candidates: new Uint32Array(count * width),
      shares: new Float32Array(count * width),
    };
    for (let i = 0; i < count * width; i += 1) {
      const [token, share] = draft.candidates[Math.floor(i / width)][i % width];
      step.candidates[i] = token;
      step.shares[i] = share;
    }
    step.text = count; // tokens before the padding at the end of the canvas
    while (step.text > 0 && this.special.has(step.tokens[step.text - 1])) step.text -= 1;
    step.settled = step.states.subarray(0, step.text).reduce((sum, state) => sum + (isSettled(state) ? 1 : 0), 0);
    step.meanEntropy = step.entropy.reduce((sum, value) => sum + value, 0) / Math.max(1, count);
    this.steps.push(step);
    if (this.hole) this.repeated = overlap(this.before, draft.text);
    return step;
  }

  /** Set the final text of the hole, which shows how much of the text before it was repeated. */
  filledWith(middle) {
    const text = this.textBetween(this.length - 1, 0, Infinity);
    const found = text.indexOf(middle);
    this.repeated = found > 0 && this.before.endsWith(text.slice(0, found)) ? found : 0;
  }

  get length() {
    return this.steps.length;
  }

  /** The given text before the new one, without the part that the new text repeats. */
  get textBefore() {
    return this.before.slice(0, this.before.length - this.repeated);
  }

  piece(token) {
    return this.pieces.get(token) ?? "";
  }

  /** Return the steps that make up the whole text at a step: the last one of each earlier canvas, and the step itself. */
  textAt(index) {
    const found = [];
    for (let i = index; i >= 0; i = this.steps[i].previous) found.unshift(this.steps[i]);
    return found;
  }

  /** Return the text of positions `from` to `to` at a step, without special tokens. Byte tokens are joined to characters. */
  textBetween(index, from, to) {
    let text = "";
    let bytes = [];
    const flush = () => {
      text += new TextDecoder().decode(Uint8Array.from(bytes));
      bytes = [];
    };
    for (const step of this.textAt(index)) {
      const last = Math.min(to, step.start + step.tokens.length);
      for (let position = Math.max(from, step.start); position < last; position += 1) {
        const token = step.tokens[position - step.start];
        const byte = /^<0x([0-9A-F]{2})>$/.exec(this.piece(token));
        if (byte) bytes.push(parseInt(byte[1], 16));
        else if (!this.special.has(token)) {
          flush();
          text += this.piece(token);
        }
      }
    }
    flush();
    return text;
  }

  /** Return the step that holds a position of the text at a step, and the index within it. */
  locate(index, position) {
    for (let i = index; i >= 0; i = this.steps[i].previous) {
      const step = this.steps[i];
      if (position >= step.start)
        return position < step.start + step.tokens.length ? [step, position - step.start] : null;
    }
    return null;
  }

  /** Return the tokens of a position over the steps of its canvas. Equal neighbours are one entry. */
  history(index, position) {
    const found = [];
    const here = this.locate(index, position);
    if (!here) return found;
    for (const step of this.steps) {
      if (step.canvas !== here[0].canvas || step.run !== here[0].run || step.attempt !== here[0].attempt) continue;
      const at = position - step.start;
      const last = found.at(-1);
      if (last && last.token === step.tokens[at]) last.until = step.step;
      else found.push({ token: step.tokens[at], from: step.step, until: step.step, entropy: step.entropy[at] });
    }
    return found;
  }

  candidates(index, position) {
    const here = this.locate(index, position);
    return here ? this.candidatesOf(...here) : [];
  }

  candidatesOf(step, at) {
    return Array.from({ length: step.width }, (_, i) => ({
      token: step.candidates[at * step.width + i],
      share: step.shares[at * step.width + i],
    }));
  }

  /** Return steps, settled tokens and speed up to a step. */
  counters(index) {
    const step = this.steps[index];
    if (!step) return null;
    const tokens = step.start + step.settled;
    return {
      canvas: step.canvas + 1,
      canvases: this.steps.at(-1).canvas + 1,
      step: step.step,
      most: step.most,
      steps: index + 1,
      tokens,
      length: step.start + step.text,
      perStep: tokens / (index + 1),
      perSecond: step.at > 0 ? tokens / step.at : NaN,
      seconds: step.at,
      entropy: step.meanEntropy,
      reason: step.reason,
    };
  }

  #lastOf(run, canvas) {
    for (let i = this.steps.length - 1; canvas >= 0 && i >= 0; i -= 1) {
      if (this.steps[i].run === run && this.steps[i].canvas === canvas) return i;
    }
    return -1;
  }
}

/** Return the length of the longest end of `before` that `text` repeats, as happens if a hole begins inside a token. */
function overlap(before, text) {
  for (let count = Math.min(32, before.length, text.length); count > 0; count -= 1) {
    if (before.endsWith(text.slice(0, count))) return count;
  }
  return 0;
}

function rounded(value) {
  return Math.round(1e4 * value) / 1e4;
}

export function isSettled(state) {
  const letter = String.fromCharCode(state);
  return letter === "s" || letter === "f" || letter === "p";
}

export function stateName(state) {
  if (state === OPEN) return "open";
  return { p: "pinned", f: "final", s: "settled", a: "accepted" }[String.fromCharCode(state)];
}

/** Return why a canvas ended, in words. */
export function reasonInWords(reason) {
  return { converged: "converged early", steps: "ran out of steps" }[reason] ?? "still open";
}

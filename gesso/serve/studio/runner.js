// One request that is watched: its events go into a recording, and its text to whoever asked.

import { stream } from "./api.js";
import { Recording } from "./recording.js";

const LARGEST = 2 ** 32;

/** A seed of chance, known beforehand so that a run can be made again. */
export function drawSeed() {
  return Math.floor(Math.random() * LARGEST);
}

/** How many tokens may take the place of so many: a span written anew may grow, but not ramble. */
export function roomFor(tokens) {
  return 2 * tokens + 4;
}

/**
 * Run to the end, or until the signal aborts. `watch` is called for every event: {draft}, {choice}, {usage}.
 * Resolves with the recording; what went wrong is in its `trouble`, null if nothing did.
 */
export async function record(path, body, { signal, recording = new Recording(), watch = () => {} } = {}) {
  recording.seed = body.seed;
  try {
    for await (const event of stream(path, body, signal)) {
      if (event.draft) recording.add(event.draft);
      if (event.usage) recording.usage = event.usage;
      for (const choice of event.choices) recording.finish = choice.finish_reason ?? recording.finish;
      watch(event);
    }
  } catch (error) {
    recording.trouble = signal?.aborted ? "stopped" : error.message;
  }
  recording.seconds = (performance.now() - recording.began) / 1000;
  return recording;
}

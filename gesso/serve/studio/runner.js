// Run one request and record its events.

import { stream } from "./api.js";
import { Recording } from "./recording.js";

const LARGEST = 2 ** 32;

/** Return a random seed, chosen here so that a run can be repeated. */
export function drawSeed() {
  return Math.floor(Math.random() * LARGEST);
}

/** Return the token limit for rewriting a span of `tokens` tokens. */
export function maxTokensFor(tokens) {
  return 2 * tokens + 4;
}

/** Return a body whose canvas keeps these pins. */
export function withPins(body, pins) {
  if (!pins.size) return body;
  const tokens = Object.fromEntries([...pins].map(([position, { token }]) => [String(position), token]));
  return { ...body, diffusion: { ...body.diffusion, pins: tokens } };
}

/**
 * Run to the end, or until the signal aborts. `watch` is called for every event: {draft}, {choice}, {usage}.
 * Resolves with the recording. Its `trouble` is the error message, or null.
 */
export async function record(path, body, { signal, recording = new Recording(), watch = () => {} } = {}) {
  recording.seed = body.seed;
  recording.request = { path, body };
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

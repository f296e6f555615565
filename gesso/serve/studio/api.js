// The server's HTTP API. The API key stays in this tab (sessionStorage) and is sent to this server only.

const KEY = "gesso.key";

/** An error with the server's message. `status` is 0 if there was no answer. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Events for all views: "key-required", "lost"; "models" if they or the choice among them changed. */
export const bus = new EventTarget();

export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Return whether this tab has a key, because the server has asked for one. */
export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export async function getJson(path) {
  return (await request(path)).json();
}

export async function getText(path) {
  return (await request(path)).text();
}

export async function postJson(path, body, signal) {
  return (await request(path, body, signal)).json();
}

/** Yield the events of a stream. Aborting the signal ends the stream and frees its slot in the engine. */
export async function* stream(path, body, signal) {
  const response = await request(path, { ...body, stream: true }, signal);
  for await (const data of eventsOf(response.body, signal)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, event.error.code ?? 500);
    yield event;
  }
  throw lost(); // a stream without [DONE] was cut off
}

async function request(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    throw signal?.aborted ? error : lost();
  }
  if (response.ok) return response;
  if (response.status === 401) bus.dispatchEvent(new Event("key-required"));
  throw new ApiError(await errorMessage(response), response.status);
}

async function errorMessage(response) {
  const fallback = `the server answered ${response.status}`;
  try {
    return (await response.json()).error?.message ?? fallback;
  } catch {
    return fallback;
  }
}

async function* eventsOf(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await read(reader, signal);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data: "));
        if (lines.length) yield lines.map((line) => line.slice(6)).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // left early: discard the rest
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    throw signal?.aborted ? error : lost();
  }
}

function lost() {
  bus.dispatchEvent(new Event("lost"));
  return new ApiError("the server does not answer; it may have been stopped", 0);
}

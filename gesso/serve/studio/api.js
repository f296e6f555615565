// The server's HTTP API. The key a user has typed stays in this tab (sessionStorage) and goes to this server only.

const KEY = "gesso.key";

/** What went wrong, in the server's words. `status` is 0 when there was no answer at all. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Tells the page of things that concern all views: "key-required", "lost", "models". */
export const bus = new EventTarget();

export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
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

/** The events of a stream, as they come. Aborting the signal ends it and frees the engine's slot. */
export async function* stream(path, body, signal) {
  const response = await request(path, { ...body, stream: true }, signal);
  for await (const data of eventsOf(response.body, signal)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, event.error.code ?? 500);
    yield event;
  }
  throw lost(); // a stream that ends without saying so was cut off
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
  throw new ApiError(await complaint(response), response.status);
}

async function complaint(response) {
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
    reader.cancel().catch(() => {}); // left early: what is still to come is for nobody
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

// Conversations, saved in this browser, and their export as a file.
//
// Other tabs use the same storage, so every change starts from its current content.

import { download } from "./files.js";

const NAME = "gesso.conversations";
const VERSION = 1;

/** Return [{id, title, messages}], newest first; an empty list if the storage cannot be read. */
export function load() {
  try {
    return checked(JSON.parse(localStorage.getItem(NAME) ?? "null")) ?? [];
  } catch {
    return [];
  }
}

/** Save conversations in front of the others, replacing older versions. Throw an Error if the storage is full. */
export function keep(...conversations) {
  const ids = new Set(conversations.map(({ id }) => id));
  save([...conversations, ...load().filter(({ id }) => !ids.has(id))]);
}

export function forget({ id }) {
  save(load().filter((other) => other.id !== id));
}

/** Call `call` after another tab has changed the conversations. */
export function onChange(call) {
  window.addEventListener("storage", ({ key }) => key === NAME && call());
}

function save(conversations) {
  try {
    localStorage.setItem(NAME, JSON.stringify({ version: VERSION, conversations }));
  } catch {
    throw new Error("This browser's storage is full, so the conversation was not saved. Export conversations and delete some.");
  }
}

export function newConversation() {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), title: "New conversation", messages: [] };
}

/** Download conversations as a file. */
export function exportFile(conversations) {
  download("gesso-conversations.json", { version: VERSION, conversations });
}

/** Return the conversations of an exported file. Throw an Error if it is not one. */
export async function importFile(file) {
  let data;
  try {
    data = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON`);
  }
  const conversations = checked(data);
  if (!conversations) throw new Error(`${file.name} has no conversations of this studio`);
  return conversations;
}

function checked(data) {
  const ok = data?.version === VERSION && Array.isArray(data.conversations) && data.conversations.every(isConversation);
  return ok ? data.conversations : null;
}

function isConversation(value) {
  return (
    typeof value?.id === "string" &&
    typeof value.title === "string" &&
    Array.isArray(value.messages) &&
    value.messages.every(isMessage)
  );
}

function isMessage(value) {
  return (
    typeof value?.role === "string" &&
    typeof value.content === "string" &&
    typeof (value.thinking ?? "") === "string" &&
    (value.images ?? []).every?.(isImage) &&
    (value.toolCalls ?? []).every?.((call) =>
      ["name", "arguments"].every((name) => typeof call?.function?.[name] === "string"),
    )
  );
}

function isImage(value) {
  return typeof value?.name === "string" && /^data:image\//.test(value.thumbnail);
}

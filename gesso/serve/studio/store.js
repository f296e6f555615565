// Conversations, kept in this browser, and as a file to take elsewhere.
//
// Other tabs keep theirs in the same place, so every change is made to what is there now.

const NAME = "gesso.conversations";
const VERSION = 1;

/** [{id, title, messages}], the newest first. What cannot be read is as good as nothing. */
export function load() {
  try {
    return checked(JSON.parse(localStorage.getItem(NAME) ?? "null")) ?? [];
  } catch {
    return [];
  }
}

/** Put these first, and in the place of older versions of them. An Error says that there is no room. */
export function keep(...conversations) {
  const ids = new Set(conversations.map(({ id }) => id));
  save([...conversations, ...load().filter(({ id }) => !ids.has(id))]);
}

export function forget({ id }) {
  save(load().filter((other) => other.id !== id));
}

/** `call` when another tab has changed them. */
export function onChange(call) {
  window.addEventListener("storage", ({ key }) => key === NAME && call());
}

function save(conversations) {
  try {
    localStorage.setItem(NAME, JSON.stringify({ version: VERSION, conversations }));
  } catch {
    throw new Error("This browser has no room to keep the conversation. Export what matters, and delete some.");
  }
}

export function newConversation() {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), title: "New conversation", messages: [] };
}

/** Hands the user a file of these conversations. */
export function exportFile(conversations) {
  const text = JSON.stringify({ version: VERSION, conversations }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "gesso-conversations.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

/** The conversations of such a file; an Error says what is wrong with it. */
export async function importFile(file) {
  let data;
  try {
    data = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON`);
  }
  const conversations = checked(data);
  if (!conversations) throw new Error(`${file.name} holds no conversations of this studio`);
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
    (value.toolCalls ?? []).every?.((call) =>
      ["name", "arguments"].every((name) => typeof call?.function?.[name] === "string"),
    )
  );
}

// <chat-view>: a conversation, and beside it the canvas of its newest answer.

import { Composer } from "./composer.js";
import { conversationItem } from "./conversation-item.js";
import { DEMO } from "./demo.js";
import { field, h, oncePerFrame } from "./dom.js";
import { drawer } from "./drawer.js";
import { fileButton } from "./files.js";
import { contentOf } from "./images.js";
import { messageView } from "./message.js";
import { chosenModel } from "./models.js";
import { Recording } from "./recording.js";
import { runTools } from "./run-tools.js";
import { drawSeed, maxTokensFor, record, withPins } from "./runner.js";
import * as store from "./store.js";
import { welcome } from "./welcome.js";

export class ChatView extends HTMLElement {
  connectedCallback() {
    if (this.thread) return;
    this.runs = new WeakMap(); // request body and recording by message, while the page is open
    this.stop = null;
    this.#build();
    this.conversations = store.load();
    this.#open(this.conversations[0] ?? store.newConversation());
    store.onChange(() => this.#drawList());
  }

  #build() {
    this.list = h("ul", { class: "conversations" });
    this.thread = h("div", { class: "thread", role: "log", "aria-label": "ChatSpec", tabindex: "0" });
    this.panel = h("run-panel", { able: "pins span", empty: "Press “Send” and watch the answer emerge from noise." });
    this.panel.tools = runTools(this.panel, () => this.#next());
    this.panel.addEventListener("redenoise", (event) => this.#redenoise(event.detail.pins));
    this.panel.addEventListener("rewrite", (event) => this.#rewrite(event.detail));
    this.settings = document.createElement("run-settings");
    this.system = h("textarea", { rows: 2 });
    this.tools = h("textarea", {
      rows: 4,
      class: "code",
      spellcheck: "false",
      placeholder: "[] or a list of tools in OpenAI's format",
    });
    this.thinking = h("input", { type: "checkbox" });
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.composer = new Composer(this, { onSend: () => this.#send(), onStop: () => this.stop.abort() });
    this.draw = oncePerFrame(() => this.#drawLast());
    const [open, settings] = drawer(
      "Settings",
      this.settings,
      field("System message", this.system),
      field("Tools", this.tools),
      h("label", { class: "field check" }, this.thinking, " Think before the answer"),
    );
    this.append(
      h("aside", { class: "side", "aria-label": "Conversations" }, this.#sideTools(), this.list),
      h("section", { class: "talk", "aria-label": "Chat" }, this.thread, this.complaint, this.composer.element, open),
      this.panel,
      settings,
    );
  }

  #sideTools() {
    return h(
      "div",
      { class: "side-tools" },
      h("button", { type: "button", onclick: () => this.#open(store.newConversation()) }, "New"),
      h("button", { type: "button", class: "quiet", onclick: () => store.exportFile(store.load()) }, "Export"),
      fileButton("Import", "application/json", (file) => this.#import(file)),
    );
  }

  // --- conversations -------------------------------------------------------------------------------------------------

  #open(conversation) {
    this.stop?.abort();
    this.current = conversation;
    this.#drawThread();
    this.#drawList();
    if (conversation.messages.length) this.panel.recording = null;
    else this.panel.replay(Recording.from(DEMO));
  }

  #keep(conversation) {
    const [{ content, images }] = conversation.messages;
    conversation.title = (content || images?.[0]?.name || "…").slice(0, 60);
    try {
      store.keep(conversation);
    } catch (error) {
      this.complaint.textContent = error.message;
    }
    this.#drawList();
  }

  #forget(conversation) {
    store.forget(conversation);
    if (conversation.id === this.current.id) {
      this.current.forgotten = true; // a running answer must not save it again
      this.#open(this.#reload()[0] ?? store.newConversation());
    } else this.#drawList();
  }

  async #import(file) {
    try {
      const added = await store.importFile(file);
      store.keep(...added);
      this.#open(added[0] ?? this.current);
    } catch (error) {
      this.complaint.textContent = error.message;
    }
  }

  /** Load the conversations that this tab and others have saved. Unchanged conversations stay the same objects, because
   * runs are looked up by their messages. */
  #reload() {
    const known = new Map(this.conversations.map((conversation) => [JSON.stringify(conversation), conversation]));
    known.set(JSON.stringify(this.current), this.current);
    this.conversations = store.load().map((conversation) => known.get(JSON.stringify(conversation)) ?? conversation);
    return this.conversations;
  }

  #drawList() {
    const items = this.#reload().map((conversation) =>
      conversationItem(conversation, {
        current: conversation.id === this.current.id,
        onOpen: () => this.#open(conversation),
        onDelete: () => this.#forget(conversation),
      }),
    );
    this.list.replaceChildren(...items);
  }

  // --- requests ------------------------------------------------------------------------------------------------------

  async #send() {
    await this.composer.tray.ready;
    if (this.stop || !this.#checkTools() || !this.composer.tray.check()) return;
    const { message } = this.composer;
    if (!message) return;
    this.composer.clear();
    this.#append(message);
    this.#answer(this.settings.seedOrNone ?? drawSeed());
  }

  /** Append a message and save at once, because the page may be closed before the answer is complete. */
  #append(message) {
    this.current.messages.push(message);
    this.#keep(this.current);
  }

  /** Send a starter of the welcome page, with the tools it needs. */
  #begin(text, tools) {
    if (tools.length) this.tools.value = JSON.stringify(tools, null, 2);
    this.composer.text = text;
    this.#send();
  }

  /** Generate the next message of the conversation. */
  async #answer(seed) {
    const body = this.#body(seed);
    const message = { role: "assistant", content: "", seed };
    this.current.messages.push(message);
    await this.#write(message, body, { label: this.settings.label });
  }

  /** Return the request that Send would make, or the one that made the last answer. */
  #next() {
    const { message } = this.composer;
    const messages = [...this.current.messages, ...(message ? [message] : [])];
    const seed = messages.at(-1)?.role === "assistant" ? messages.pop().seed : undefined;
    if (!messages.length) throw new Error("Type a message first.");
    if (!this.#checkTools()) throw new Error("Correct the tools in Settings first.");
    return { path: "/v1/chat/completions", body: this.#body(this.settings.seedOrNone ?? seed, messages) };
  }

  #body(seed, conversation = this.current.messages) {
    const messages = conversation.map((message) => ({
      role: message.role,
      content: contentOf(message),
      ...(message.toolCalls?.length ? { tool_calls: message.toolCalls } : {}),
      ...(message.callId ? { tool_call_id: message.callId } : {}),
    }));
    if (this.system.value.trim()) messages.unshift({ role: "system", content: this.system.value });
    const body = {
      model: chosenModel(),
      messages,
      seed,
      max_tokens: this.settings.maxTokens,
      diffusion: this.settings.diffusion,
      stream_options: { include_usage: true },
    };
    if (this.thinking.checked) body.thinking = true;
    if (this.#toolList.length) body.tools = this.#toolList;
    return body;
  }

  get #toolList() {
    return JSON.parse(this.tools.value.trim() || "[]");
  }

  /** Check the tools before anything is changed, so that typed text and older answers are not lost. */
  #checkTools() {
    let trouble = "";
    try {
      if (!Array.isArray(this.#toolList)) trouble = "Tools: expected a JSON list.";
    } catch (error) {
      trouble = `Tools: ${error.message}`;
    }
    this.complaint.textContent = trouble;
    return !trouble;
  }

  async #write(message, body, { label, pins = new Map() }) {
    Object.assign(message, { content: "", thinking: "", toolCalls: [], trouble: null });
    const recording = new Recording({ label, pins });
    this.runs.set(message, { body, recording });
    await this.#run(message, "/v1/chat/completions", withPins(body, pins), recording, (event) => this.#take(message, event));
  }

  #take(message, event) {
    for (const { delta } of event.choices) {
      message.content += delta.content ?? "";
      message.thinking += delta.reasoning_content ?? "";
      message.toolCalls.push(
        ...(delta.tool_calls ?? []).map(({ id, type, function: called }) => ({ id, type, function: called })),
      );
    }
  }

  /** Run a request and show it. Stop ends it, and so does opening another conversation. */
  async #run(message, path, body, recording, take) {
    const conversation = this.current;
    this.stop = new AbortController();
    this.composer.busy = true;
    this.writing = message;
    this.panel.recording = recording;
    this.#drawThread();
    const watch = (event) => {
      take(event);
      this.panel.refresh();
      this.draw();
    };
    await record(path, body, { signal: this.stop.signal, recording, watch });
    message.trouble = recording.trouble;
    message.usage = recording.usage?.diffusion;
    this.stop = null;
    this.writing = null;
    this.composer.busy = false;
    this.panel.refresh();
    if (!conversation.forgotten) this.#keep(conversation);
    this.#drawThread();
  }

  // --- pins and spans ------------------------------------------------------------------------------------------------

  #shownMessage() {
    return this.current.messages.find((message) => this.runs.get(message)?.recording === this.panel.recording);
  }

  #redenoise(pins) {
    const message = this.#shownMessage();
    if (!message || this.stop) return;
    if (this.panel.recording.hole) {
      this.complaint.textContent = "Pins work with a whole answer, not with a rewritten span. Retry first, then pin.";
      return;
    }
    this.complaint.textContent = "";
    this.#write(message, this.runs.get(message).body, { label: "pinned", pins });
  }

  async #rewrite({ text, start, end, tokens }) {
    const message = this.#shownMessage();
    if (!message || this.stop) return;
    const { body } = this.runs.get(message);
    const characters = [...text];
    const recording = new Recording({
      before: characters.slice(0, start).join(""),
      after: characters.slice(end).join(""),
      hole: true,
      label: "span",
    });
    const request = {
      model: body.model,
      input: text,
      span: [start, end],
      max_tokens: maxTokensFor(tokens),
      seed: drawSeed(),
      diffusion: body.diffusion,
    };
    this.runs.set(message, { body, recording });
    await this.#run(message, "/v1/edits", request, recording, (event) => {
      for (const choice of event.choices) {
        message.content = choice.text;
        recording.filledWith(choice.replacement);
      }
    });
  }

  #retry(message) {
    if (this.stop || !this.#checkTools()) return;
    this.current.messages.splice(this.current.messages.indexOf(message));
    this.#answer(message.seed === undefined ? drawSeed() : (message.seed + 1) % 2 ** 32);
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  #drawThread() {
    const messages = this.current.messages;
    if (messages.length) this.thread.replaceChildren(...messages.map((message) => this.#view(message)));
    else this.thread.replaceChildren(welcome((text, tools) => this.#begin(text, tools)));
    this.thread.scrollTop = this.thread.scrollHeight;
  }

  #drawLast() {
    const index = this.current.messages.indexOf(this.writing);
    const old = this.thread.children[index];
    if (!old) return;
    const atEnd = this.thread.scrollTop + this.thread.clientHeight > this.thread.scrollHeight - 40;
    const view = this.#view(this.writing);
    if (old.querySelector(".thoughts")?.open) view.querySelector(".thoughts").open = true;
    old.replaceWith(view);
    if (atEnd) this.thread.scrollTop = this.thread.scrollHeight;
  }

  #view(message) {
    const writing = message === this.writing;
    return messageView(message, {
      writing,
      onRetry: () => this.#retry(message),
      onWatch: this.runs.has(message) ? () => (this.panel.recording = this.runs.get(message).recording) : null,
      waitsFor: (call) => !this.stop && this.#waiting(message).includes(call),
      onResult: (call, content) => {
        if (!this.#checkTools()) return;
        this.#append({ role: "tool", content, callId: call.id });
        if (this.#waiting(message).length) this.#drawThread();
        else this.#answer(this.settings.seedOrNone ?? drawSeed());
      },
    });
  }

  /** Return the calls of a message that have no result yet; none if the conversation has continued without them. */
  #waiting(message) {
    const later = this.current.messages.slice(this.current.messages.indexOf(message) + 1);
    if (later.some(({ role }) => role !== "tool")) return [];
    return (message.toolCalls ?? []).filter(({ id }) => !later.some(({ callId }) => callId === id));
  }
}

customElements.define("chat-view", ChatView);

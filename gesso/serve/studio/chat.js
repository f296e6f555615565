// <chat-view>: a conversation, and the canvas of its newest answer beside it.

import { field, h, oncePerFrame } from "./dom.js";
import { messageView } from "./message.js";
import { drawSeed, record, roomFor } from "./runner.js";
import { Recording } from "./recording.js";
import * as store from "./store.js";
import { welcome } from "./welcome.js";

export class ChatView extends HTMLElement {
  connectedCallback() {
    if (this.thread) return;
    this.conversations = store.load();
    this.current = this.conversations[0] ?? store.newConversation();
    this.runs = new WeakMap(); // what was asked and recorded, by message; for as long as the page is open
    this.stop = null;
    this.#build();
    this.#open(this.current);
  }

  #build() {
    this.list = h("ul", { class: "conversations" });
    this.thread = h("div", { class: "thread", role: "log", "aria-label": "Conversation", tabindex: "0" });
    this.panel = h("run-panel", { able: "pins span", empty: "Ask something, and watch the answer come out of noise." });
    this.panel.addEventListener("redenoise", (event) => this.#redenoise(event.detail.pins));
    this.panel.addEventListener("rewrite", (event) => this.#rewrite(event.detail));
    this.settings = document.createElement("run-settings");
    this.system = h("textarea", { rows: 2 });
    this.tools = h("textarea", {
      rows: 4,
      class: "code",
      spellcheck: "false",
      placeholder: "[] or a list of tools, as OpenAI's API takes them",
    });
    this.thinking = h("input", { type: "checkbox" });
    this.complaint = h("p", { class: "complaint", role: "alert" });
    this.draw = oncePerFrame(() => this.#drawLast());
    this.append(
      h("aside", { class: "side", "aria-label": "Conversations" }, this.#sideTools(), this.list),
      h(
        "section",
        { class: "talk", "aria-label": "Chat" },
        this.thread,
        this.complaint,
        this.#composer(),
        this.#options(),
      ),
      this.panel,
    );
  }

  #sideTools() {
    const file = h("input", {
      type: "file",
      accept: "application/json",
      hidden: true,
      onchange: () => this.#import(file),
    });
    return h(
      "div",
      { class: "side-tools" },
      h("button", { type: "button", onclick: () => this.#open(store.newConversation()) }, "New"),
      h("button", { type: "button", class: "quiet", onclick: () => store.exportFile(this.conversations) }, "Export"),
      h("button", { type: "button", class: "quiet", onclick: () => file.click() }, "Import"),
      file,
    );
  }

  #composer() {
    this.input = h("textarea", {
      rows: 2,
      "aria-label": "Message",
      placeholder: "Message (Enter sends, Shift+Enter is a new line)",
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    this.button = h("button", { type: "submit", class: "primary" }, "Send");
    return h(
      "form",
      {
        class: "composer",
        onsubmit: (event) => {
          event.preventDefault();
          if (this.stop) this.stop.abort();
          else this.#send();
        },
      },
      this.input,
      this.button,
    );
  }

  #options() {
    return h(
      "details",
      { class: "options" },
      h("summary", {}, "Settings"),
      this.settings,
      field("System message", this.system),
      field("Tools", this.tools),
      h("label", { class: "field check" }, this.thinking, " Think before the answer"),
    );
  }

  // --- conversations -------------------------------------------------------------------------------------------------

  #open(conversation) {
    this.stop?.abort();
    this.current = conversation;
    this.panel.recording = null;
    this.#drawThread();
    this.#drawList();
  }

  #keep() {
    const first = this.current.messages[0];
    if (first) this.current.title = first.content.slice(0, 60) || "…";
    this.conversations = [this.current, ...this.conversations.filter((other) => other.id !== this.current.id)];
    store.save(this.conversations);
    this.#drawList();
  }

  #forget(conversation) {
    this.conversations = this.conversations.filter((other) => other !== conversation);
    store.save(this.conversations);
    if (conversation === this.current) this.#open(this.conversations[0] ?? store.newConversation());
    else this.#drawList();
  }

  async #import(file) {
    try {
      const added = await store.importFile(file.files[0]);
      const known = new Set(added.map((conversation) => conversation.id));
      this.conversations = [...added, ...this.conversations.filter((other) => !known.has(other.id))];
      store.save(this.conversations);
      this.#open(this.conversations[0] ?? this.current);
    } catch (error) {
      this.complaint.textContent = error.message;
    }
    file.value = "";
  }

  #drawList() {
    this.list.replaceChildren(
      ...this.conversations.map((conversation) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              class: "conversation",
              "aria-current": conversation === this.current ? "true" : false,
              onclick: () => this.#open(conversation),
            },
            conversation.title,
          ),
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              "aria-label": `Delete ${conversation.title}`,
              onclick: () => this.#forget(conversation),
            },
            "×",
          ),
        ),
      ),
    );
  }

  // --- asking --------------------------------------------------------------------------------------------------------

  #send() {
    const text = this.input.value.trim();
    if (!text || this.stop) return;
    this.input.value = "";
    this.current.messages.push({ role: "user", content: text });
    this.#answer(this.settings.seedOrNone ?? drawSeed());
  }

  /** What the welcome offers: something to ask, and the tools it needs. */
  #begin(text, tools) {
    if (tools.length) this.tools.value = JSON.stringify(tools, null, 2);
    this.input.value = text;
    this.#send();
  }

  /** Have the model write the next message of the conversation. */
  async #answer(seed) {
    const body = this.#body(seed);
    if (!body) return this.#drawThread();
    const message = { role: "assistant", content: "", seed };
    this.current.messages.push(message);
    await this.#write(message, body, { label: this.settings.label });
  }

  #body(seed) {
    const messages = this.current.messages.map(({ role, content, toolCalls, callId }) => ({
      role,
      content,
      ...(toolCalls?.length ? { tool_calls: toolCalls } : {}),
      ...(callId ? { tool_call_id: callId } : {}),
    }));
    if (this.system.value.trim()) messages.unshift({ role: "system", content: this.system.value });
    const body = {
      messages,
      seed,
      max_tokens: this.settings.maxTokens,
      diffusion: this.settings.diffusion,
      stream_options: { include_usage: true },
    };
    if (this.thinking.checked) body.thinking = true;
    try {
      const tools = JSON.parse(this.tools.value.trim() || "[]");
      if (tools.length) body.tools = tools;
      this.complaint.textContent = "";
      return body;
    } catch (error) {
      this.complaint.textContent = `Tools: ${error.message}`;
      return null;
    }
  }

  async #write(message, body, { label, pins = new Map() }) {
    const asked = { ...body, diffusion: { ...body.diffusion, pins: pinsOf(pins) } };
    Object.assign(message, { content: "", thinking: "", toolCalls: [], trouble: null });
    const recording = new Recording({ label, pins });
    this.runs.set(message, { body, recording });
    await this.#watched(message, recording, (signal) =>
      record("/v1/chat/completions", asked, { signal, recording, watch: (event) => this.#take(message, event) }),
    );
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

  /** Show a run while it goes on; a press on Stop ends it. */
  async #watched(message, recording, run) {
    this.stop = new AbortController();
    this.button.textContent = "Stop";
    this.writing = message;
    this.panel.recording = recording;
    this.#drawThread();
    const timer = setInterval(() => (this.panel.refresh(), this.draw()), 30);
    const finished = await run(this.stop.signal);
    clearInterval(timer);
    message.trouble = finished.trouble;
    message.usage = finished.usage?.diffusion;
    this.stop = null;
    this.writing = null;
    this.button.textContent = "Send";
    this.panel.refresh();
    this.#keep();
    this.#drawThread();
  }

  // --- hand on it ----------------------------------------------------------------------------------------------------

  #shownMessage() {
    return this.current.messages.find((message) => this.runs.get(message)?.recording === this.panel.recording);
  }

  #redenoise(pins) {
    const message = this.#shownMessage();
    if (!message || this.stop) return;
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
    const asked = {
      input: text,
      span: [start, end],
      max_tokens: roomFor(tokens),
      seed: drawSeed(),
      diffusion: body.diffusion,
    };
    this.runs.set(message, { body, recording });
    await this.#watched(message, recording, (signal) =>
      record("/v1/edits", asked, {
        signal,
        recording,
        watch: (event) => {
          for (const choice of event.choices) {
            message.content = choice.text;
            recording.filledWith(choice.replacement);
          }
        },
      }),
    );
  }

  #retry(message) {
    if (this.stop) return;
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
    old.replaceWith(this.#view(this.writing));
    if (atEnd) this.thread.scrollTop = this.thread.scrollHeight;
  }

  #view(message) {
    const writing = message === this.writing;
    return messageView(message, {
      writing,
      onRetry: () => this.#retry(message),
      onWatch: this.runs.has(message) ? () => (this.panel.recording = this.runs.get(message).recording) : null,
      onResult: (call, content) => {
        this.current.messages.push({ role: "tool", content, callId: call.id });
        this.#answer(this.settings.seedOrNone ?? drawSeed());
      },
    });
  }
}

function pinsOf(pins) {
  return Object.fromEntries([...pins].map(([position, { token }]) => [String(position), token]));
}

customElements.define("chat-view", ChatView);

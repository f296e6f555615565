"""The engine process: `python -m gesso.serve.worker SETTINGS`, with requests on stdin and events on stdout.

It ends when its stdin does, so it never outlives the server. Between two steps it takes in what was sent and hands out
what the last step brought; it waits for nobody who reads.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import IO

import gesso
from gesso import checkpoint
from gesso.api import Gesso
from gesso.engine import events as engine_events
from gesso.errors import GessoError, InputError
from gesso.serve.protocol import (
    Broken,
    Cancel,
    Drafted,
    Ended,
    Failed,
    Loading,
    Message,
    Ready,
    Settled,
    Started,
    Submit,
    decode,
    encode,
)
from gesso.serve.settings import EngineSettings

Send = Callable[[Message], None]
EXIT_BROKEN = 3


class Worker:
    def __init__(self, model: Gesso, send: Send) -> None:
        self.model, self.engine, self.send = model, model.engine, send
        self.asked: dict[int, Submit] = {}  # by the engine's id
        self.ids: dict[int, int] = {}  # the engine's id, by the server's
        self.sent: dict[int, int] = {}  # settled tokens told of, by the engine's id
        self.likely: dict[int, list[engine_events.Likely]] = {}
        self.adapter: str | None = None

    def run(self, inbox: "queue.SimpleQueue[Message]") -> None:
        while True:
            while not self.engine.busy or not inbox.empty():
                self.take(inbox.get())
            try:
                brought = self.engine.step()
            except Exception as error:  # not a sampler's (the engine sees to those): memory, most likely
                self.blame(error)
                continue
            self.announce()
            for event in brought:
                if event.request_id in self.asked:
                    self.tell(event, self.asked[event.request_id])

    def take(self, message: Message) -> None:
        match message:
            case Submit():
                try:
                    self.submit(message)
                except InputError as error:
                    self.send(Failed(message.id, str(error), by_input=True))
                except Exception as error:
                    self.send(Failed(message.id, f"{type(error).__name__}: {error}", by_input=False))
            case Cancel(id) if id in self.ids:
                self.engine.cancel(self.ids[id])
                self.forget(self.ids[id])

    def submit(self, asked: Submit) -> None:
        if asked.adapter != self.adapter:
            self.model.use_adapter(asked.adapter)
            self.adapter = asked.adapter
        options = dict(asked.options)
        options["pins"] = {int(at): token for at, token in options.get("pins", {}).items()}
        id = self.engine.submit(self.model.request(asked.prompt, **options))
        self.asked[id], self.ids[asked.id] = asked, id
        self.sent[id], self.likely[id] = -1, []

    def announce(self) -> None:
        """Tell of those that have come in."""
        for running in self.engine.scheduler.running:
            if self.sent.get(running.id) == -1:
                self.sent[running.id] = 0
                self.send(Started(self.asked[running.id].id))

    def tell(self, event: engine_events.Event, asked: Submit) -> None:
        match event:
            case engine_events.Draft():
                if asked.drafts:
                    entropy = [round(value, 4) for value in event.entropy]
                    self.send(Drafted(asked.id, event.canvas.index, event.canvas.step, event.text, entropy))
                # With logprobs the text waits for them: they are those of the step that ends the canvas.
                if asked.stream and asked.options.get("top_logprobs") is None:
                    self.settle(event.request_id, list(event.standing), asked)
            case engine_events.Commit():
                self.likely[event.request_id] += event.likely
            case engine_events.Done(request_id, result):
                likely = [(entry.token, list(entry.top)) for entry in self.likely[request_id][: len(result.tokens)]]
                usage = asdict(result.usage)
                tokens = list(result.tokens)
                self.send(Ended(asked.id, result.text, tokens, result.finish_reason, result.seed, usage, likely))
                self.forget(request_id)
            case engine_events.Failed(request_id, error):
                self.send(Failed(asked.id, f"{type(error).__name__}: {error}", isinstance(error, InputError)))
                self.forget(request_id)

    def settle(self, id: int, standing: list[int], asked: Submit) -> None:
        if len(standing) > self.sent[id]:
            self.send(Settled(asked.id, standing[self.sent[id] :]))
            self.sent[id] = len(standing)

    def blame(self, error: Exception) -> None:
        """A pass failed as a whole. Whoever came in last goes, and the rest try again without it."""
        last = max((running.id for running in self.engine.scheduler.running), default=max(self.asked, default=None))
        if last is None:
            raise error
        self.engine.cancel(last)
        if last in self.asked:
            self.send(Failed(self.asked[last].id, f"{type(error).__name__}: {error}", by_input=False))
            self.forget(last)

    def forget(self, id: int) -> None:
        del self.ids[self.asked.pop(id).id], self.sent[id], self.likely[id]


def load(settings: EngineSettings, send: Send) -> Gesso:
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if (percent := 100 * done // max(total, 1)) > shown:
            shown = percent
            send(Loading(percent / 100))

    with checkpoint.watched(progress):
        return gesso.load(
            settings.model,
            device=settings.device,
            dtype=settings.dtype,
            quantize=settings.quantize,
            adapter=settings.adapters or None,
            max_batch=settings.max_batch,
            max_length=settings.max_length,
        )


def read(pipe: IO[bytes], inbox: "queue.SimpleQueue[Message]") -> None:
    for line in pipe:
        inbox.put(decode(line))
    os._exit(0)  # the server is gone; nobody is left to finish a step, or a load, for


def main() -> None:
    pipe = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a stray print must not end up among the messages
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=read, args=(sys.stdin.buffer, inbox), daemon=True).start()

    def send(message: Message) -> None:
        view = memoryview(encode(message))
        while view:
            view = view[pipe.write(view) :]

    settings = EngineSettings(**json.loads(sys.argv[1]))
    try:
        model = load(settings, send)
        model.use_adapter(None)  # each request says which it wants
        model.engine.scheduler.prefill = max(settings.prefill, model.engine.scheduler.piece)
    except (GessoError, OSError) as error:
        send(Broken(str(error)))
        sys.exit(EXIT_BROKEN)
    send(Ready(model.engine.max_length, str(model.model.device), str(model.model.dtype).removeprefix("torch.")))
    Worker(model, send).run(inbox)


if __name__ == "__main__":
    main()

"""The engine process: `python -m gesso.serve.worker SETTINGS`, with requests on stdin and events on stdout.

It ends when its stdin does, so it never outlives the server. Between two steps it takes in what was sent and hands out
what the last step brought; it waits for nobody who reads.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import gesso
from gesso import checkpoint, filling
from gesso.api import Gesso, find_device, find_dtype
from gesso.engine import events as engine_events
from gesso.engine.request import Request
from gesso.errors import GessoError, InputError
from gesso.guide.guide import Guide
from gesso.plan import Plan, PlanRun
from gesso.serve import auto
from gesso.serve.drafts import drafted
from gesso.serve.protocol import (
    Broken,
    Cancel,
    Ended,
    Failed,
    Held,
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
REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Compiled:
    """A constraint is ready, or cannot be."""

    asked: Submit
    guide: "Future[Guide | None]"


Inbox = queue.SimpleQueue[Message | Compiled]


class Worker:
    def __init__(self, model: Gesso, send: Send) -> None:
        self.model, self.engine, self.send = model, model.engine, send
        self.asked: dict[int, Submit] = {}  # by the engine's id
        self.ids: dict[int, list[int]] = {}  # the engine's ids, by the server's; none while its constraint is compiled
        self.sent: dict[int, int] = {}  # settled tokens told of, by the engine's id
        self.likely: dict[int, list[engine_events.Likely]] = {}
        self.holes: dict[int, PlanRun[filling.InfillResult | filling.EditResult]] = {}  # by the server's id
        self.adapter: str | None = None
        self.reported = 0.0  # when `Held` was sent
        self.compiler = ThreadPoolExecutor(1)  # constraints are compiled while the engine goes on

    def run(self, inbox: Inbox) -> None:
        self.inbox = inbox
        while True:
            while not self.engine.running or not inbox.empty():  # one that was cancelled leaves in the next step
                self.report(now=inbox.empty())
                self.take(inbox.get())
            self.report()
            brought = self.engine.step()  # raises only if this process has to be restarted
            self.announce()
            for event in brought:
                if event.request_id in self.asked:
                    self.tell(event, self.asked[event.request_id])

    def report(self, now: bool = False) -> None:
        """What is in hand, at most once in a while unless the engine is about to rest."""
        if now or time.monotonic() > self.reported + REPORT_SECONDS:
            self.reported = time.monotonic()
            self.send(Held(len(self.ids), len(self.engine.running), self.engine.cache.nbytes, resident_bytes()))

    def take(self, message: Message | Compiled) -> None:
        match message:
            case Submit():
                self.ids[message.id] = []
                self.attempt(message, partial(self.submit, message))
            case Compiled(asked, guide) if asked.id in self.ids:  # nobody has cancelled it
                self.attempt(asked, lambda: self.write(asked, guide.result()))
            case Cancel(id):
                self.forget(id)

    def attempt(self, asked: Submit, action: Callable[[], None]) -> None:
        """What goes wrong with one request is told to its client, and no one else."""
        try:
            action()
        except Exception as error:
            by_input = isinstance(error, InputError)
            message = str(error) if by_input else f"{type(error).__name__}: {error}"
            self.fail(asked, message, by_input)

    def fail(self, asked: Submit, message: str, by_input: bool) -> None:
        self.send(Failed(asked.id, message, by_input))
        self.forget(asked.id)

    def submit(self, asked: Submit) -> None:
        if asked.adapter != self.adapter:
            self.model.use_adapter(asked.adapter)
            self.adapter = asked.adapter
        if asked.hole is not None:
            self.holes[asked.id] = PlanRun(self.plan(asked.hole, asked), self.engine)
            self.go_on(asked)
        elif asked.constraint is not None:
            compiled = self.compiler.submit(self.compile, asked.constraint, bool(asked.options.get("pins")))
            compiled.add_done_callback(lambda guide: self.inbox.put(Compiled(asked, guide)))
        else:
            self.write(asked, None)

    def compile(self, constraint: dict[str, Any], pinned: bool) -> Guide | None:
        guides = self.model.guides
        guide = guides.calls(**constraint) if "tools" in constraint else guides.guide(**constraint)
        if guide and pinned:
            _ = guide.every_move  # which may take seconds, and here nobody else waits
        return guide

    def write(self, asked: Submit, guide: Guide | None) -> None:
        options = dict(asked.options)
        options["pins"] = {int(at): token for at, token in options.get("pins", {}).items()}
        self.enter(asked, self.model.request(asked.prompt, guide=guide, **options))

    def enter(self, asked: Submit, request: Request) -> None:
        self.note(asked, self.engine.submit(request))

    def note(self, asked: Submit, id: int) -> None:
        """Record that the engine's request `id` belongs to a client's request."""
        self.asked[id] = asked
        self.ids[asked.id].append(id)
        self.sent[id], self.likely[id] = -1, []

    # --- holes, whose plans run requests round by round ---------------------------------------------------------------

    def plan(self, hole: dict[str, Any], asked: Submit) -> Plan[Any]:
        if "span" in hole:
            span = (hole["span"][0], hole["span"][1])
            return filling.edit(self.model, **{**hole, "span": span}, method="auto", context=None, **asked.options)
        return filling.infill(self.model, **hole, method="auto", lengths=None, context=None, **asked.options)

    def go_on(self, asked: Submit, event: engine_events.Event | None = None) -> None:
        """Start a plan, or pass an event on to it; its end is the end of the client's request."""
        run = self.holes[asked.id]
        ended = run.start() if event is None else run.take(event)
        for id in run.ids[len(self.ids[asked.id]) :]:
            self.note(asked, id)
        if ended:
            found = run.result
            text = found.replacement if isinstance(found, filling.EditResult) else found.text
            tokens, usage = list(found.tokens), asdict(found.usage)
            self.send(Ended(asked.id, text, tokens, found.finish_reason, found.seed, usage))
            self.forget(asked.id)

    def announce(self) -> None:
        """Tell of those that have come in."""
        for running in self.engine.scheduler.running:
            if self.sent.get(running.id) == -1:
                self.sent[running.id] = 0
                self.send(Started(self.asked[running.id].id))

    def tell(self, event: engine_events.Event, asked: Submit) -> None:
        hole = self.holes.get(asked.id)
        match event:
            case engine_events.Done() | engine_events.Scored() | engine_events.Failed() if hole is not None:
                self.attempt(asked, lambda: self.go_on(asked, event))
            case engine_events.Draft():
                if asked.drafts:
                    self.send(drafted(event, asked.id, self.ids[asked.id].index(event.request_id)))
                # With logprobs the text waits for them: they are those of the step that ends the canvas.
                # Which of several texts fills a hole is known in the end.
                if asked.stream and hole is None and asked.options.get("top_logprobs") is None:
                    self.settle(event.request_id, list(event.standing), asked)
            case engine_events.Commit() if hole is None:
                self.likely[event.request_id] += event.likely
            case engine_events.Done(request_id, result):
                likely = [(entry.token, list(entry.top)) for entry in self.likely[request_id][: len(result.tokens)]]
                usage = asdict(result.usage)
                tokens = list(result.tokens)
                self.send(Ended(asked.id, result.text, tokens, result.finish_reason, result.seed, usage, likely))
                self.forget(asked.id)
            case engine_events.Failed(_, error):
                self.fail(asked, f"{type(error).__name__}: {error}", isinstance(error, InputError))

    def settle(self, id: int, standing: list[int], asked: Submit) -> None:
        if len(standing) > self.sent[id]:
            self.send(Settled(asked.id, standing[self.sent[id] :]))
            self.sent[id] = len(standing)

    def forget(self, id: int) -> None:
        """Of a request by the server's id: nobody waits for it any more. What has ended is not running."""
        for of_engine in self.ids.pop(id, ()):
            self.engine.cancel(of_engine)
            del self.asked[of_engine], self.sent[of_engine], self.likely[of_engine]
        self.holes.pop(id, None)


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def choose(settings: EngineSettings) -> auto.Choice:
    device = find_device(settings.device)
    return auto.choose(settings, auto.memory_of(device), find_dtype(settings.dtype, device).itemsize)


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
            max_batch=settings.max_batch or 1,
            max_length=settings.max_length,
        )


def read(pipe: IO[bytes], inbox: Inbox) -> None:
    for line in pipe:
        inbox.put(decode(line))
    os._exit(0)  # the server is gone; nobody is left to finish a step, or a load, for


def main() -> None:
    pipe = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a stray print must not end up among the messages
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=read, args=(sys.stdin.buffer, inbox), daemon=True).start()

    def send(message: Message) -> None:
        view = memoryview(encode(message))
        while view:
            view = view[pipe.write(view) :]

    try:
        choice = choose(EngineSettings(**json.loads(sys.argv[1])))
        settings = choice.settings
        assert settings.max_batch and settings.max_length and settings.prefill
        model = load(settings, send)
        model.use_adapter(None)  # each request says which it wants
        model.engine.scheduler.prefill = max(settings.prefill, model.engine.scheduler.piece)
    except (GessoError, OSError) as error:
        send(Broken(str(error)))
        sys.exit(EXIT_BROKEN)
    device, dtype = str(model.model.device), str(model.model.dtype).removeprefix("torch.")
    limits = settings.max_batch, model.engine.max_length, model.engine.scheduler.prefill
    send(Ready(device, dtype, settings.quantize, *limits, choice.why))
    Worker(model, send).run(inbox)


if __name__ == "__main__":
    main()

"""The engine process: `python -m gesso.serve.worker SETTINGS`, with requests on stdin and events on stdout.

It ends with its stdin, so it never outlives the server. Between two steps it takes in what was sent and hands out what
the last step brought; it never waits for a reader. Work that a request needs before or between its steps (a constraint
to load, a plan for infill) runs in a side thread, so that other requests' steps go on.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

import gesso
from gesso.api import Gesso, find_device, find_dtype
from gesso.checkpoint import huggingface as checkpoint
from gesso.engine import events as engine_events
from gesso.engine.engine import Engine
from gesso.engine.plan import Plan, PlanRun
from gesso.engine.request import Request, Score
from gesso.errors import GessoError, InputError
from gesso.infill import infill as filling
from gesso.serve import auto
from gesso.serve.drafts import drafted
from gesso.serve.protocol import (
    SIZES,
    Broken,
    Cancel,
    Ended,
    Failed,
    FrameTooLarge,
    Heartbeat,
    Loading,
    Logprobs,
    Message,
    Ready,
    Settled,
    Started,
    Submit,
    decode,
    encode,
    sizes,
)
from gesso.serve.settings import EngineSettings, places_of_plan
from gesso.settings import Diffusion

Send = Callable[[Message], None]
BEAT_SECONDS = 1.0
EXIT_BROKEN = 3


@dataclass(frozen=True)
class Finished:
    """The side thread has finished work that a request waits for."""

    asked: Submit
    work: "Future[Any]"
    then: Callable[[Any], None]


Inbox = queue.SimpleQueue[tuple[Message, bytes] | Finished]


class Worker:
    def __init__(self, model: Gesso, send: Send) -> None:
        self.model, self.engine, self.send = model, model.engine, send
        self.asked: dict[int, Submit] = {}  # by the engine's id
        self.ids: dict[int, list[int]] = {}  # the engine's ids by the server's; none while the side thread is at work
        self.sent: dict[int, int] = {}  # settled tokens reported, by the engine's id; -1: not started
        self.plans: dict[int, PlanRun[filling.InfillResult | filling.EditResult]] = {}  # by the server's id
        self.adapter: str | None = None
        self.share = places_of_plan(len(self.engine.scheduler.rows), model.model.device.type)
        self.side = ThreadPoolExecutor(1)
        self.side_work: dict[int, Future[Any]] = {}  # by the server's id
        self.status = Heartbeat()
        self.measured = float("-inf")  # when its figures of usage were

    def run(self, inbox: Inbox) -> None:
        self.inbox = inbox
        while True:
            while not self.engine.running or not inbox.empty():  # a cancelled request leaves with the next step
                self.report(send=inbox.empty())
                message = inbox.get()
                self.report(began=time.monotonic())
                self.take(message)
            self.report(began=time.monotonic())
            brought = self.engine.step()
            self.announce()
            for event in brought:
                if event.request_id in self.asked:
                    self.tell(event, self.asked[event.request_id])

    def report(self, *, began: float = 0.0, send: bool = False) -> None:
        """Note for the heartbeat when the current step or message began; `send` it before a rest.

        Usage is measured before a rest, and otherwise at most once per second: it costs too much for every step.
        """
        now = time.monotonic()
        if not send and now - self.measured < BEAT_SECONDS:
            self.status = replace(self.status, step_seconds=began)
            return
        self.measured = now
        device = torch.cuda.memory_reserved() if self.model.model.device.type == "cuda" else 0
        self.status = Heartbeat(
            began, len(self.ids), len(self.engine.running), self.engine.cache.nbytes, resident_bytes(), device
        )
        if send:
            self.send(self.status)

    def take(self, message: tuple[Message, bytes] | Finished) -> None:
        match message:
            case Submit() as asked, bytes() as blob:
                self.ids[asked.id] = []
                self.attempt(asked, lambda: self.submit(asked, blob))
            case Cancel(id), _:
                self.forget(id)
            case Finished(asked, work, then) if asked.id in self.ids:  # not cancelled meanwhile
                self.side_work.pop(asked.id, None)
                self.attempt(asked, lambda: then(work.result()))

    def attempt(self, asked: Submit, action: Callable[[], None]) -> None:
        """Report an error in the work for one request to its client only."""
        try:
            action()
        except Exception as error:
            self.fail(asked, error)

    def fail(self, asked: Submit, error: Exception) -> None:
        by_input = isinstance(error, InputError)
        message = str(error) if by_input else f"{type(error).__name__}: {error}"
        self.send(Failed(asked.id, message, by_input))
        self.forget(asked.id)

    def aside(self, asked: Submit, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have the side thread do some work for a request; then continue with its result in the engine's thread."""
        future = self.side_work[asked.id] = self.side.submit(work)
        future.add_done_callback(lambda done: self.inbox.put(Finished(asked, done, then)))

    # --- requests -----------------------------------------------------------------------------------------------------

    def submit(self, asked: Submit, blob: bytes) -> None:
        if asked.adapter != self.adapter:
            self.model.use_adapter(asked.adapter)
            self.adapter = asked.adapter
        if asked.hole is not None:
            run = self.plans[asked.id] = PlanRun(self.plan(asked.hole, asked), self.engine, self.share)
            self.aside(asked, partial(run.advance, None), partial(self.go_on, asked))
        elif asked.constraint is not None:
            self.aside(asked, lambda: self.request(asked, blob), partial(self.enter, asked))
        else:
            self.enter(asked, self.request(asked))

    def request(self, asked: Submit, compiled: bytes = b"") -> Request:
        guide = None
        if (constraint := asked.constraint) is not None:
            guide = self.model.guides.restored(constraint.key, compiled, tools=constraint.tools)
        options = dict(asked.options)
        options["pins"] = {int(at): token for at, token in options.get("pins", {}).items()}
        request = self.model.request(asked.prompt, guide=guide, **options)
        if guide is not None:
            request.reach.check()  # computes tables for pins, which takes a while; `enter` checks the rest
        return request

    def enter(self, asked: Submit, request: Request) -> None:
        self.note(asked, self.engine.submit(request))

    def note(self, asked: Submit, id: int) -> None:
        """Record that the engine's request `id` belongs to a client's request."""
        self.asked[id] = asked
        self.ids[asked.id].append(id)
        self.sent[id] = -1

    # --- plans, which run requests round by round ---------------------------------------------------------------------

    def plan(self, hole: dict[str, Any], asked: Submit) -> Plan[Any]:
        if "span" in hole:
            span = (hole["span"][0], hole["span"][1])
            return filling.edit(self.model, **{**hole, "span": span}, method="auto", context=None, **asked.options)
        return filling.infill(self.model, **hole, method="auto", lengths=None, context=None, **asked.options)

    def go_on(self, asked: Submit, requests: Sequence[Request | Score]) -> None:
        """Submit the next round of a plan; its end is the end of the client's request."""
        run = self.plans[asked.id]
        if run.ended:
            found = run.result
            text = found.replacement if isinstance(found, filling.EditResult) else found.text
            tokens, usage = list(found.tokens), asdict(found.usage)
            self.send(Ended(asked.id, text, tokens, found.finish_reason, found.seed, usage))
            self.forget(asked.id)
            return
        run.submit(requests)
        self.note_new(asked, run)

    def note_new(self, asked: Submit, run: PlanRun[Any]) -> None:
        for id in run.ids[len(self.ids[asked.id]) :]:
            self.note(asked, id)

    def collect(self, asked: Submit, event: engine_events.Event) -> None:
        """Pass an event on to a plan; when its round is complete, have the side thread work out the next one."""
        run = self.plans[asked.id]
        answers = run.collect(event)
        self.note_new(asked, run)
        if answers is not None:
            self.aside(asked, partial(run.advance, answers), partial(self.go_on, asked))

    # --- events -------------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Report the requests that have got a place in the batch."""
        for running in self.engine.scheduler.running:
            if self.sent.get(running.id) == -1:
                self.sent[running.id] = 0
                self.send(Started(self.asked[running.id].id))

    def tell(self, event: engine_events.Event, asked: Submit) -> None:
        planned = asked.id in self.plans
        match event:
            case engine_events.Done() | engine_events.Scored() | engine_events.Failed() if planned:
                self.attempt(asked, lambda: self.collect(asked, event))
            case engine_events.Draft():
                if asked.drafts:
                    self.send(drafted(event, asked.id, self.ids[asked.id].index(event.request_id)))
                # With log-probabilities the text waits for them: they are those of the step that ends the canvas.
                # Which of several texts fills a hole is known only at the end.
                if asked.stream and not planned and asked.options.get("top_logprobs") is None:
                    self.settle(event.request_id, list(event.standing), asked)
            case engine_events.Commit(likely=likely) if likely and not planned:
                self.send(Logprobs(asked.id, [(entry.token, list(entry.top)) for entry in likely]))
            case engine_events.Done(_, result):
                usage, tokens = asdict(result.usage), list(result.tokens)
                self.send(Ended(asked.id, result.text, tokens, result.finish_reason, result.seed, usage))
                self.forget(asked.id)
            case engine_events.Failed(_, error):
                self.fail(asked, error)

    def settle(self, id: int, standing: list[int], asked: Submit) -> None:
        if len(standing) > self.sent[id]:
            self.send(Settled(asked.id, standing[self.sent[id] :]))
            self.sent[id] = len(standing)

    def forget(self, id: int) -> None:
        """Drop a request, by the server's id: it has ended, or its client has left."""
        for of_engine in self.ids.pop(id, ()):
            self.engine.cancel(of_engine)
            del self.asked[of_engine], self.sent[of_engine]
        if (work := self.side_work.pop(id, None)) is not None:
            work.cancel()
        self.plans.pop(id, None)


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


def keep_within(device: torch.device, budget: int) -> None:
    """Have the allocator of a GPU free what it keeps, and fail, before it takes more than the budget."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / torch.cuda.mem_get_info(index)[1]), index)


def warm_up(engine: Engine, max_batch: int) -> None:
    """Run the largest batch once, then a single request: kernels are compiled, and memory is cut largest first.

    Three steps each: a pass runs as it is, then is captured, then replayed.
    """
    for count in dict.fromkeys((max_batch, 1)):
        for seed in range(count):
            diffusion = Diffusion(steps=3, stopping="fixed")
            engine.submit(
                Request(prompt=(0,), max_new_tokens=engine.model.config.canvas_length, diffusion=diffusion, seed=seed)
            )
        while engine.busy:
            engine.step()


def read(pipe: IO[bytes], inbox: Inbox) -> None:
    while len(prefix := pipe.read(SIZES.size)) == SIZES.size:
        head, blob = sizes(prefix)
        inbox.put((decode(pipe.read(head)), pipe.read(blob)))
    os._exit(0)  # the server is gone, and with it everybody who could read an answer


class Pipe:
    """The pipe to the server, for several threads."""

    def __init__(self) -> None:
        self._pipe = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)  # a stray print must not end up among the messages
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        try:
            data = encode(message)
        except FrameTooLarge as error:
            data = encode(Failed(getattr(message, "id", 0), str(error), by_input=False))
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[self._pipe.write(view) :]


def beat(send: Send, status: Callable[[], Heartbeat]) -> None:
    """Send a heartbeat once per second; `step_seconds` of the status is the time at which the current step began."""
    while True:
        now = status()
        send(replace(now, step_seconds=time.monotonic() - now.step_seconds if now.step_seconds else 0.0))
        time.sleep(BEAT_SECONDS)


def main() -> None:
    send = Pipe().send
    inbox: Inbox = queue.SimpleQueue()
    worker: Worker | None = None
    threading.Thread(target=read, args=(sys.stdin.buffer, inbox), daemon=True).start()
    threading.Thread(
        target=beat, args=(send, lambda: Heartbeat() if worker is None else worker.status), daemon=True
    ).start()
    try:
        choice = choose(EngineSettings(**json.loads(sys.argv[1])))
        settings = choice.settings
        keep_within(find_device(settings.device), choice.budget_bytes)
        assert settings.max_batch and settings.max_length and settings.prefill
        model = load(settings, send)
        model.use_adapter(None)  # each request names its own
        model.engine.scheduler.prefill = max(settings.prefill, model.engine.scheduler.piece)
    except Exception as error:
        expected = isinstance(error, (GessoError, OSError))
        if not expected:
            traceback.print_exc()
        send(Broken(str(error) if expected else f"{type(error).__name__}: {error}", final=expected))
        os._exit(EXIT_BROKEN)  # without waiting for the thread that reads stdin
    if model.model.device.type == "cuda":
        warm_up(model.engine, settings.max_batch)
    device, dtype = str(model.model.device), str(model.model.dtype).removeprefix("torch.")
    limits = settings.max_batch, model.engine.max_length, model.engine.scheduler.prefill
    worker = Worker(model, send)
    send(Ready(device, dtype, settings.quantize, *limits, choice.why, choice.fixed_bytes, choice.budget_bytes))
    worker.run(inbox)


if __name__ == "__main__":
    main()

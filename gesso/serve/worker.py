"""The engine process: `python -m gesso.serve.worker SETTINGS`, with requests on stdin and events on stdout.

It ends with its stdin, so it never outlives the server. Between two steps it reads new messages and sends the events of
the last step; it never waits for a reader. Work that a request needs before or between its steps (loading a constraint,
planning the rounds of an infill) runs in a side thread, so that the steps of other requests continue.
"""

import contextlib
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
from typing import Any, ClassVar

import torch

from gesso.api import Gesso
from gesso.chat.prompt import Prompt
from gesso.constraints.budget import give_way_to_passes, going_first
from gesso.engine.decision import decision_request
from gesso.engine.driver import PlanRun
from gesso.engine.events import Commit, Done, Draft, Event, Likely, Result, Scored
from gesso.engine.plan import Echo, Plan, compare, echo, retry_seed
from gesso.engine.request import Request
from gesso.errors import GessoError, InputError
from gesso.images.image import Image
from gesso.infill.edit import edit
from gesso.infill.infill import infill
from gesso.infill.results import EditResult
from gesso.memory.device import resident_bytes
from gesso.printable import in_options
from gesso.serve import startup
from gesso.serve.adapter_loader import AdapterLoader
from gesso.serve.collecting import Collector, take_over
from gesso.serve.drafts import drafted
from gesso.serve.packed_images import unpack
from gesso.serve.pipe import BEAT_SECONDS, Delivery, Inbox, Pipe, Send, beat, read
from gesso.serve.protocol import (
    Broken,
    Cancel,
    Ended,
    Failed,
    Heartbeat,
    LoadAdapter,
    Logprobs,
    Ready,
    Settled,
    Started,
    Submit,
    UnloadAdapter,
)
from gesso.serve.settings import EngineSettings, places_of_plan

TOKENS = 256  # with log-probabilities in one message
EXIT_BROKEN = 3
SWITCH_SECONDS = 0.0001  # that each operation of a step may wait for another thread; by default it is 0.005


@dataclass(eq=False)
class Job:
    """A client's request."""

    submitted: Submit
    run: PlanRun[Any] | None = None  # None until it has been submitted
    started: bool = False  # reported to the server
    settled: int = 0  # tokens reported
    constrained: bool = False
    writing_since: float | None = None  # time of the first draft


class Worker:
    """Runs the requests of all clients on one engine and reports their events."""

    # Without a request, before garbage is collected or a pass is captured that may be needed later.
    idle_seconds: ClassVar[float] = 1.0

    def __init__(self, model: Gesso, send: Send) -> None:
        self.model, self.engine, self.driver, self.send = model, model.engine, model.driver, send
        self.jobs: dict[int, Job] = {}  # by the server's id
        self.share = places_of_plan(len(self.engine.scheduler.rows), model.model.device.type)
        self.side, self.loader = ThreadPoolExecutor(1, "gesso-side", give_way_to_passes), AdapterLoader(model, send)
        self.status, self.collector = Heartbeat(), Collector()
        self.measured = float("-inf")  # time of the last measurement of usage

    def run(self, inbox: Inbox) -> None:
        self.inbox = inbox
        while True:
            while not self.engine.running or not inbox.empty():  # a cancelled request leaves with the next step
                self.report(send=inbox.empty())
                message = self.next_message()
                self.report(began=time.monotonic())
                with going_first(self.engine.runner.captures):
                    self.take(message)
            self.report(began=time.monotonic())
            self.driver.step()
            self.announce()

    def next_message(self) -> Delivery:
        """Wait for a message. Meanwhile, collect garbage, and capture passes that were not captured before."""
        while self.collector.is_due or self.engine.captures_left:
            try:
                return self.inbox.get(timeout=self.idle_seconds)
            except queue.Empty:
                self.report(began=time.monotonic())
                if self.collector.is_due:
                    self.collector.collect()
                else:
                    with contextlib.suppress(torch.OutOfMemoryError):  # other passes serve that work
                        self.engine.capture_next()
                self.report(send=True)
        return self.inbox.get()

    def report(self, *, began: float = 0.0, send: bool = False) -> None:
        """Record for the heartbeat when the current step or message began; `send` it before waiting.

        Usage is measured before waiting, and otherwise at most once per second: it costs too much for every step.
        """
        now = time.monotonic()
        if not send and now - self.measured < BEAT_SECONDS:
            self.status = replace(self.status, step_seconds=began)
            return
        self.measured = now
        device = torch.cuda.memory_reserved(self.model.model.device) if self.model.model.device.type == "cuda" else 0
        requests = len(self.jobs), len(self.engine.running)
        resident = resident_bytes()[0]
        self.collector.collect_if_grown(resident)
        memory = self.engine.cache.nbytes, resident, device
        seen, counts = self.engine.runner.seen, asdict(self.engine.runner.backend.counts)
        self.status = Heartbeat(began, *requests, *memory, **counts, images_read=seen.read, images_kept=seen.kept)
        if send:
            self.send(self.status)

    def take(self, message: Delivery) -> None:
        match message:
            case Submit() as submitted, bytes() as blob:
                job = self.jobs[submitted.id] = Job(submitted)
                try:
                    self.submit(job, blob)
                except Exception as error:
                    self.fail(job, error)
            case Cancel(id), _:
                self.forget(id)
            case LoadAdapter() as adapter, _:
                self.loader.load(adapter, self.inbox)
            case UnloadAdapter(name), _:
                self.model.unload_adapter(name)
            case Callable():
                message()

    # --- requests -----------------------------------------------------------------------------------------------------

    def submit(self, job: Job, blob: bytes) -> None:
        submitted = job.submitted
        # Work whose duration a client chooses runs in the side thread. A plain request must not wait behind it.
        aside = submitted.hole is not None or submitted.constraint is not None or bool(submitted.images)
        self.collector.is_due |= aside
        job.run = self.driver.submit(
            self.plan(job, blob),
            at_once=self.share,
            on_event=partial(self.tell, job),
            on_end=partial(self.end, job),
            background=self.aside if aside else None,
        )

    def plan(self, job: Job, blob: bytes) -> Plan[Any]:
        """Return a plan for a client's request; its code runs when the driver advances it."""
        submitted = job.submitted
        hole, options = submitted.hole, submitted.options | {"adapter": submitted.adapter}
        if submitted.echo is not None:
            return (yield from echo(submitted.prompt, *submitted.echo, submitted.adapter))
        if submitted.choices:
            defaults = self.model.defaults
            eos, usual = frozenset(defaults.eos_token_ids if submitted.ends else ()), defaults.max_new_tokens
            limit, adapter = self.model.max_length, submitted.adapter
            request = decision_request(
                submitted.prompt, submitted.choices, eos, self.model.config, usual, limit, adapter
            )
            return (yield from compare(replace(request, images=self.images(submitted, blob)[0])))
        if hole is None:
            request = self.request(submitted, blob)
            job.constrained = request.guide is not None
            return (yield [request])[0]
        if "span" in hole:
            hole = {**hole, "span": (hole["span"][0], hole["span"][1])}
            return (yield from edit(self.model, **hole, method="auto", context=None, **options))
        seconds = submitted.seconds
        return (
            yield from infill(self.model, **hole, method="auto", lengths=None, context=None, seconds=seconds, **options)
        )

    def images(self, submitted: Submit, blob: bytes) -> tuple[tuple[Image, ...], bytes]:
        """Return the images of a request, and the rest of its blob."""
        images, rest = unpack(submitted.images, blob)
        for image in images:
            _ = image.digest  # computed here, in the side thread: hashing 100 MB would delay a step
        return images, rest

    def request(self, submitted: Submit, blob: bytes = b"") -> Request:
        guide, (images, compiled) = None, self.images(submitted, blob)
        if (constraint := submitted.constraint) is not None:
            guide = self.model.guides.restored(constraint.key, compiled, tools=constraint.tools)
        options = dict(submitted.options)
        options["pins"] = {int(at): token for at, token in options.get("pins", {}).items()}
        if submitted.attempt:
            options["seed"] = retry_seed(options["seed"], submitted.attempt)
        optional = submitted.constraint is not None and submitted.constraint.optional
        prompt = Prompt(submitted.prompt, images)
        request = self.model.request(prompt, guide=guide, guide_optional=optional, adapter=submitted.adapter, **options)
        if request.guide is not None:
            request.reach.check()  # computes tables for pins, which takes a while; `Engine.submit` checks the rest
        return request

    def aside(self, work: Callable[[], Any], then: Callable[[Callable[[], Any]], None]) -> "Future[Any]":
        """Run work in the side thread, then continue with its result in the engine's thread."""
        future = self.side.submit(work)
        future.add_done_callback(lambda done: self.inbox.put(partial(then, done.result)))
        return future

    # --- events -------------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Report the jobs that have a place in the batch."""
        running = {running.id for running in self.engine.scheduler.running}
        for job in self.jobs.values():
            if job.run is not None and not running.isdisjoint(job.run.ids):
                self.start(job)

    def start(self, job: Job) -> None:
        if not job.started:
            job.started = True
            self.send(Started(job.submitted.id))

    def tell(self, job: Job, event: Event) -> None:
        """Report an event of one of a job's requests."""
        submitted, planned = job.submitted, job.submitted.planned
        self.start(job)
        match event:
            case Draft():
                if submitted.seconds is not None:
                    self.end_in_time(job, event)
                if submitted.drafts and job.run is not None:
                    self.send(drafted(event, submitted.id, job.run.ids.index(event.request_id)))
                # With log-probabilities the text waits for them: they are those of the step that ends the canvas.
                # For a hole, the chosen text is known only at the end.
                if submitted.stream and not planned and submitted.options.get("top_logprobs") is None:
                    self.settle(job, event.final_tokens)
            case Commit(likely=likely) if likely and not planned:
                self.send_logprobs(submitted.id, likely)
            case Done(result=result) if not planned:  # the plan has no more to do, so do not wait for the side thread
                self.complete(job, result)

    def end_in_time(self, job: Job, draft: Draft) -> None:
        """End a text whose time is over, if its final part has a whole line.

        A hole of a fixed length is not ended: the text after it is pinned in the same canvas.
        """
        now = time.monotonic()
        if job.writing_since is None:
            job.writing_since = now
        limit = job.submitted.seconds
        if limit is None or now - job.writing_since < limit or draft.request.pins:
            return
        text = self.model.decode(draft.final_tokens)
        if job.submitted.hole is not None:
            split_off = text[: 2 * self.model.healer.longest]
            text = text[_overlap(job.submitted.hole["prefix"], split_off) :]
        lines, _, _ = text.rpartition("\n")
        if lines.strip():
            self.engine.cut_short_at(draft.request_id)

    def settle(self, job: Job, tokens: Sequence[int]) -> None:
        if len(tokens) > job.settled:
            self.send(Settled(job.submitted.id, list(tokens[job.settled :])))
            job.settled = len(tokens)

    def end(self, job: Job, run: PlanRun[Result | Scored | Echo]) -> None:
        if run.error is not None:
            self.fail(job, run.error)
        else:
            self.complete(job, run.outcome())

    def complete(self, job: Job, result: Result | Scored | Echo) -> None:
        id, usage = job.submitted.id, asdict(result.usage)
        match result:
            case Scored():
                self.send(Ended(id, "", [], "stop", 0, usage, scores=result.log_likelihoods))
            case Echo():
                self.send_logprobs(id, [None, *result.likely])
                self.send(Ended(id, self.model.decode(result.tokens), list(result.tokens), "length", 0, usage))
            case Result():
                text = result.replacement if isinstance(result, EditResult) else result.text
                end = result.finish_reason, result.seed, usage, result.stop, job.constrained
                self.send(Ended(id, text, list(result.tokens), *end))
        self.forget(id)

    def send_logprobs(self, id: int, likely: Sequence[Likely | None]) -> None:
        """Report log-probabilities in messages that the server reads in a few milliseconds each."""
        for start in range(0, len(likely), TOKENS):
            part = likely[start : start + TOKENS]
            self.send(Logprobs(id, [(None, []) if one is None else (one.token, list(one.top)) for one in part]))

    def fail(self, job: Job, error: Exception) -> None:
        """Report an error to the client of a request. Other requests are not affected."""
        by_input = isinstance(error, InputError)
        message = str(error) if by_input else f"{type(error).__name__}: {error}"
        self.send(Failed(job.submitted.id, message, by_input))
        self.forget(job.submitted.id)

    def forget(self, id: int) -> None:
        """Drop a job, by the server's id: it has ended, or its client has left."""
        job = self.jobs.pop(id, None)
        if job is not None and job.run is not None:
            self.driver.cancel(job.run)


def _overlap(before: str, text: str) -> int:
    """Return the most characters that are both the end of the text before a hole and the start of the new text.

    The new text begins with the end of the text before it, as far as `Healer` has split that off.
    """
    longest = min(len(before), len(text))
    return next((length for length in range(longest, 0, -1) if before.endswith(text[:length])), 0)


def main() -> None:
    send = Pipe().send
    inbox: Inbox = queue.SimpleQueue()
    worker: Worker | None = None
    threading.Thread(target=read, args=(sys.stdin.buffer, inbox), daemon=True).start()
    threading.Thread(
        target=beat, args=(send, lambda: Heartbeat() if worker is None else worker.status), daemon=True
    ).start()
    try:
        model, choice = startup.start(EngineSettings(**json.loads(sys.argv[1])), send)
    except Exception as error:
        expected = isinstance(error, (GessoError, OSError))
        if not expected:
            traceback.print_exc()
        message = in_options(str(error))
        send(Broken(message if expected else f"{type(error).__name__}: {message}", final=expected))
        return
    settings, engine = choice.settings, model.engine
    device, dtype = str(model.model.device), str(model.model.dtype).removeprefix("torch.")
    limits = len(engine.scheduler.rows), engine.max_length, engine.scheduler.prefill
    sys.setswitchinterval(SWITCH_SECONDS)
    take_over()
    worker = Worker(model, send)
    sizes = choice.fixed_bytes, choice.budget_bytes
    vision = model.model.vision is not None
    send(Ready(device, dtype, settings.quantize, *limits, choice.why, *sizes, model.writing.summary, vision))
    worker.run(inbox)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        pass  # the server is gone, so nobody can read the reason
    except BaseException:
        traceback.print_exc()
    finally:
        # Without a shutdown of the interpreter, which aborts while a thread waits for stdin.
        os._exit(EXIT_BROKEN)

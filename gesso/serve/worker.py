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
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from msgspec import DecodeError
from msgspec.structs import replace

from gesso.api import Gesso
from gesso.constraints.budget import give_way_to_passes, going_first
from gesso.engine.driver import Driver, PlanRun
from gesso.engine.events import Commit, Done, Draft, Event, Likely, Result, Scored
from gesso.engine.plan import AnswerToCheck, Echo, Plan, compare, echo, generate
from gesso.engine.request import Request
from gesso.errors import ConstraintError, GessoError, InputError
from gesso.infill.edit import edit
from gesso.infill.infill import infill
from gesso.infill.results import EditResult
from gesso.memory.device import resident_bytes
from gesso.printable import encodable, in_options
from gesso.request.build import attach
from gesso.serve import startup
from gesso.serve.adapter_loader import AdapterLoader
from gesso.serve.collecting import Collector, take_over
from gesso.serve.drafts import drafted
from gesso.serve.packed_images import unpack
from gesso.serve.pipe import BEAT_SECONDS, EXIT_BROKEN, Delivery, Inbox, Pipe, Send, beat, read
from gesso.serve.settings import EngineSettings, places_of_plan
from gesso.serve.wire import (
    INVALID_ANSWER,
    AnswerChecked,
    Broken,
    Cancel,
    CheckAnswer,
    CompareTexts,
    EchoPrompt,
    EditSpan,
    Ended,
    EngineWork,
    FillHole,
    Heartbeat,
    LoadAdapter,
    Logprobs,
    Ready,
    RequestFailed,
    Settled,
    Started,
    Submit,
    UnloadAdapter,
    WriteText,
    work_of,
)

TOKENS = 256  # with log-probabilities in one message
SWITCH_SECONDS = 0.0001  # that each operation of a step may wait for another thread; by default it is 0.005


@dataclass(eq=False)
class ClientJob:
    """One answer that the server has asked for."""

    submitted: Submit
    work: EngineWork
    run: PlanRun[Any] | None = None  # None until it has been submitted
    started: bool = False  # reported to the server
    settled: int = 0  # tokens reported
    writing_since: float | None = None  # time of the first draft

    @property
    def seconds(self) -> float | None:
        """How long the text may be written before it is ended at a line."""
        match self.work:
            case WriteText(seconds=seconds):
                return seconds
            case FillHole(hole=hole):
                return hole.seconds
        return None

    @property
    def takes_long_to_begin(self) -> bool:
        """Whether a client decides how long the work before the first step takes: it then runs in a side thread."""
        is_constrained = isinstance(self.work, WriteText) and self.work.guide is not None
        return is_constrained or isinstance(self.work, FillHole | EditSpan) or bool(self.submitted.shapes)

    @property
    def ends_with_text(self) -> bool:
        """Whether the answer is the text of one request, which nothing checks."""
        return isinstance(self.work, WriteText) and not self.work.request.is_checked_later


class Worker:
    """Runs the requests of all clients on one engine and reports their events."""

    # Without a request, before garbage is collected or a pass is captured that may be needed later.
    idle_seconds: ClassVar[float] = 1.0

    def __init__(self, model: Gesso, send: Send) -> None:
        self.model, self.engine, self.send = model, model.engine, send
        self.driver = Driver(model.engine, self.ask_server)
        self.jobs: dict[int, ClientJob] = {}  # by the server's id
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
        resident = resident_bytes()[0]
        self.collector.collect_if_grown(resident)
        seen, counts = self.engine.runner.seen, asdict(self.engine.runner.backend.counts)
        self.status = Heartbeat(
            step_seconds=began,
            requests=len(self.jobs),
            places=len(self.engine.running),
            cache_bytes=self.engine.cache.nbytes,
            memory_bytes=resident,
            device_bytes=device,
            **counts,
            images_read=seen.read,
            images_kept=seen.kept,
        )
        if send:
            self.send(self.status)

    def take(self, message: Delivery) -> None:
        match message:
            case Submit():
                self.submit(message)
            case AnswerChecked(id, problem) if id in self.jobs:
                run = self.jobs[id].run
                assert run is not None, "only the plan of a run asks"
                self.driver.take_problems(run, [problem])
            case Cancel(id):
                self.forget(id)
            case LoadAdapter():
                self.loader.load(message, self.inbox)
            case UnloadAdapter(name):
                self.model.unload_adapter(name)
            case Callable():
                message()

    # --- requests -----------------------------------------------------------------------------------------------------

    def submit(self, submitted: Submit) -> None:
        try:
            work = work_of(submitted.work)
        except DecodeError as error:  # a bug of the child that prepared it, which fails this request only
            self.send(failure(submitted.id, error))
            return
        job = ClientJob(submitted, work)
        self.jobs[submitted.id] = job
        # Work whose duration a client chooses runs in the side thread. A plain request must not wait behind it.
        aside = job.takes_long_to_begin
        self.collector.is_due |= aside
        try:
            job.run = self.driver.submit(
                self.plan(job),
                at_once=self.share,
                on_event=partial(self.tell, job),
                on_end=partial(self.end, job),
                background=self.aside if aside else None,
            )
        except Exception as error:
            self.fail(job, error)

    def plan(self, job: ClientJob) -> Plan[Any]:
        """Return a plan for what the server has asked for; its code runs when the driver advances it."""
        info, seed = self.model.info, job.submitted.seed
        match job.work:
            case WriteText():
                return (yield from generate([self.request(job.submitted, job.work)], job.submitted.attempts))[0]
            case CompareTexts(request):
                images = unpack(job.submitted.shapes, job.submitted.images)
                return (yield from compare(attach(request.request(info, seed, images), None)))
            case EchoPrompt(prompt=prompt, top_logprobs=top, new_tokens=new, adapter=adapter):
                return (yield from echo(prompt, top, new, adapter))
            case FillHole(base, hole):
                return (yield from infill(info, hole, base.request(info, seed, ()), None))
            case EditSpan(base, change):
                return (yield from edit(info, change, base.request(info, seed, ()), None))

    def request(self, submitted: Submit, work: WriteText) -> Request:
        """Return the request of a text, with its images and its compiled constraint."""
        images = unpack(submitted.shapes, submitted.images)
        request = work.request.request(self.model.info, submitted.seed, images)
        key = work.guide
        guide = None
        if key is not None:
            guide = self.model.guides.restored(key.key, bytes(submitted.term), tools=key.has_tags)
        return attach(request, guide)

    def ask_server(self, run: PlanRun[Any], answers: Sequence[AnswerToCheck]) -> None:
        """Have the server check the answer of a job: a schema decides how long it takes."""
        job = next(job for job in self.jobs.values() if job.run is run)
        (answer,) = answers
        result = answer.result
        self.send(CheckAnswer(job.submitted.id, result.text, list(result.tokens), asdict(result.usage)))

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

    def start(self, job: ClientJob) -> None:
        if not job.started:
            job.started = True
            self.send(Started(job.submitted.id))

    def tell(self, job: ClientJob, event: Event) -> None:
        """Report an event of one of a job's requests."""
        submitted = job.submitted
        self.start(job)
        match event:
            case Draft():
                if job.seconds is not None:
                    self.end_in_time(job, event, job.seconds)
                if submitted.drafts and job.run is not None:
                    self.send(drafted(event, submitted.id, job.run.ids.index(event.request_id)))
                # With log-probabilities the text waits for them: they are those of the step that ends the canvas.
                # For a hole, the chosen text is known only at the end.
                if submitted.stream and isinstance(job.work, WriteText) and event.request.top_logprobs is None:
                    self.settle(job, event.final_tokens)
            case Commit(likely=likely) if likely and isinstance(job.work, WriteText):
                self.send_logprobs(submitted.id, likely)
            case Done(result=result) if job.ends_with_text:  # so do not wait for the side thread
                self.complete(job, result)

    def end_in_time(self, job: ClientJob, draft: Draft, limit: float) -> None:
        """End a text whose time is over, if its final part has a whole line.

        A hole of a fixed length is not ended: the text after it is pinned in the same canvas.
        """
        now = time.monotonic()
        if job.writing_since is None:
            job.writing_since = now
        if now - job.writing_since < limit or draft.request.pins:
            return
        text = self.model.decode(draft.final_tokens)
        if isinstance(job.work, FillHole):
            split_off = text[: 2 * self.model.healer.longest]
            text = text[_overlap(job.work.hole.prefix, split_off) :]
        lines, _, _ = text.rpartition("\n")
        if lines.strip():
            self.engine.cut_short_at(draft.request_id)

    def settle(self, job: ClientJob, tokens: Sequence[int]) -> None:
        if len(tokens) > job.settled:
            self.send(Settled(job.submitted.id, list(tokens[job.settled :])))
            job.settled = len(tokens)

    def end(self, job: ClientJob, run: PlanRun[Result | Scored | Echo]) -> None:
        if run.error is not None:
            self.fail(job, run.error)
        else:
            self.complete(job, run.outcome())

    def complete(self, job: ClientJob, result: Result | Scored | Echo) -> None:
        id = job.submitted.id
        match result:
            case Scored():
                ended = Ended(
                    id=id,
                    text="",
                    tokens=[],
                    finish_reason="stop",
                    seed=0,
                    usage=asdict(result.usage),
                    scores=list(result.log_likelihoods),
                )
            case Echo():
                self.send_logprobs(id, [None, *result.likely])
                ended = Ended(
                    id=id,
                    text=self.model.decode(result.tokens),
                    tokens=list(result.tokens),
                    finish_reason="length",
                    seed=0,
                    usage=asdict(result.usage),
                )
            case Result():
                ended = Ended(
                    id=id,
                    text=result.replacement if isinstance(result, EditResult) else result.text,
                    tokens=list(result.tokens),
                    finish_reason=result.finish_reason,
                    seed=result.seed,
                    usage=asdict(result.usage),
                    stop=result.stop,
                )
        self.send(ended)
        self.forget(id)

    def send_logprobs(self, id: int, likely: Sequence[Likely | None]) -> None:
        """Report log-probabilities in messages that the server reads in a few milliseconds each."""
        for start in range(0, len(likely), TOKENS):
            part = likely[start : start + TOKENS]
            self.send(Logprobs(id, [(None, []) if one is None else (one.token, list(one.top)) for one in part]))

    def fail(self, job: ClientJob, error: Exception) -> None:
        """Report an error to the client of a request. Other requests are not affected."""
        self.send(failure(job.submitted.id, error))
        self.forget(job.submitted.id)

    def forget(self, id: int) -> None:
        """Drop a job, by the server's id: it has ended, or its client has left."""
        job = self.jobs.pop(id, None)
        if job is not None and job.run is not None:
            self.driver.cancel(job.run)


def failure(id: int, error: Exception) -> RequestFailed:
    """Return the message that a request has failed with an error."""
    by_input = isinstance(error, InputError)
    is_explained = by_input or isinstance(error, ConstraintError)
    message = str(error) if is_explained else f"{type(error).__name__}: {error}"
    code = INVALID_ANSWER if isinstance(error, ConstraintError) else None
    return RequestFailed(id=id, message=encodable(message), by_input=by_input, code=code)


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
        message = in_options(encodable(str(error)))
        send(Broken(message if expected else f"{type(error).__name__}: {message}", final=expected))
        return
    settings, engine = choice.settings, model.engine
    device, dtype = str(model.model.device), str(model.model.dtype).removeprefix("torch.")
    sys.setswitchinterval(SWITCH_SECONDS)
    take_over()
    worker = Worker(model, send)
    send(
        Ready(
            device=device,
            dtype=dtype,
            quantize=settings.quantize,
            max_batch=len(engine.scheduler.rows),
            max_length=engine.max_length,
            prefill=engine.scheduler.prefill,
            why=choice.why,
            fixed_bytes=choice.fixed_bytes,
            budget_bytes=choice.budget_bytes,
            writing=model.writing,
            vision=model.model.vision is not None,
        )
    )
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

"""Start, watch and restart the engine process, and send requests to it.

The server process handles HTTP, the queue and detokenization on one event loop. The model runs in a child process
(`gesso.serve.worker`) that exchanges messages (`gesso.serve.wire`) over stdin and stdout. Handlers and denoising
steps therefore cannot delay each other. If the engine dies (memory, a driver, `kill -9`), the server stays up, reports
it and starts another.

The engine has at most one batch of requests at any time, and a few more to fill gaps. The others wait here, where
clients take turns. When the engine dies, the requests that it had started fail, because one of them may be the cause.
All others run on the next engine.

Heartbeats show that the engine is alive and how long its current step has taken. If they stop, or a step does not end,
the engine is killed and replaced.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from gesso.memory.allocator import allocator_settings
from gesso.serve.adapters import ServedAdapters
from gesso.serve.errors import ApiError
from gesso.serve.fair_queue import FairQueue
from gesso.serve.jobs import AnswerJob, Outdated
from gesso.serve.keys import without_keys
from gesso.serve.metrics import Metrics
from gesso.serve.settings import QUEUE_SHARE, EngineSettings, ServerLimits, places_of_plan
from gesso.serve.wire import (
    ENGINE_DIED,
    AdapterFailed,
    AdapterLoaded,
    Broken,
    Cancel,
    CheckAnswer,
    Drafted,
    Ended,
    FrameTooLarge,
    FromEngine,
    Heartbeat,
    Loading,
    Logprobs,
    Ready,
    RequestFailed,
    Settled,
    Started,
    ToEngine,
    frame,
    from_engine,
    read_frame,
)

logger = logging.getLogger("gesso.serve")

START_SECONDS = 60.0  # extra time for the first heartbeat: importing torch from a slow disk takes long
LOADS = 2  # consecutive engines that may die while loading before the server gives up
KILLED = -9
State = Literal["loading", "ready", "stalled", "restarting", "broken", "stopped"]


class Supervisor:
    def __init__(
        self, settings: EngineSettings, limits: ServerLimits, metrics: Metrics, name: str, shared: bool = False
    ) -> None:
        """Create a supervisor. If the server is `shared`, no client may take the whole batch or the whole queue."""
        self.settings, self.limits, self.metrics, self.name, self.shared = settings, limits, metrics, name, shared
        self.state: State = "loading"
        self.progress = 0.0  # of loading
        self.ready: Ready | None = None  # settings of the newest engine
        self.failure: str | None = None  # why loading failed, or why the last engine was replaced
        self.on_broken: Callable[[], None] = lambda: None
        self.ids = itertools.count(1)
        self.waiting: FairQueue[AnswerJob] = FairQueue()
        self.running: dict[int, AnswerJob] = {}  # sent to the engine
        self.adapters = ServedAdapters(settings.adapters, limits.max_adapters, metrics, name, self.send)
        self.beat = 0.0  # time of the last heartbeat
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer_seconds = 1.0  # running mean

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[AnswerJob]) -> None:
        """Queue the jobs of one HTTP request, all or none."""
        if self.state == "broken":
            raise ApiError(503, f"the model cannot be loaded: {self.failure}")
        if not jobs:
            return  # a request that only starts the engine
        self.adapters.check(jobs[0].adapter)
        if len(self.waiting) + len(jobs) > self.limits.queue:
            raise self._queue_full(f"{len(self.waiting)} requests are already waiting")
        own_waiting = sum(job.client == jobs[0].client for job in self.waiting)
        if self.shared and own_waiting + len(jobs) > max(self.limits.queue // QUEUE_SHARE, self.limits.choices):
            raise self._queue_full(f"{own_waiting} of your requests are already waiting")
        tokens = sum(job.tokens for job in [*self.running.values(), *self.waiting])
        limit = self.limits.total_tokens
        if limit is not None and tokens + sum(job.tokens for job in jobs) > limit:
            raise self._queue_full(f"waiting and running requests have {tokens} tokens, and the limit is {limit}")
        for job in jobs:
            self.waiting.put(job)
        self._report_outdated(jobs)
        self._send_jobs()

    def _report_outdated(self, jobs: Iterable[AnswerJob]) -> None:
        """Have jobs prepared again that the newest engine cannot run as they are. They keep their places."""
        for job in jobs:
            if self.is_outdated(job):
                job.report(Outdated())

    def is_outdated(self, job: AnswerJob) -> bool:
        """Return whether a job was prepared with another readiness than that of the newest engine."""
        return self.ready is not None and job.request.prepared.readiness != self.ready.readiness

    def send_waiting(self) -> None:
        """Send the jobs that can run now, such as those that have been prepared again."""
        self._send_jobs()

    def cancel(self, jobs: Sequence[AnswerJob]) -> None:
        """Drop jobs whose client has left. Jobs that have ended are not affected."""
        for job in jobs:
            self.waiting.remove(job)
            if self.running.pop(job.id, None) is not None:
                self.send(Cancel(job.id))
        self._send_jobs()

    def unload_adapter(self, name: str) -> None:
        """Serve an adapter to no new request. Its memory is freed after the last request that has been accepted."""
        self.adapters.unload(name)
        self._send_jobs()

    @property
    def max_batch(self) -> int:
        return self.ready.max_batch if self.ready else self.settings.max_batch or 1

    def _queue_full(self, why: str) -> ApiError:
        rounds = 1 + len(self.waiting) / self.max_batch
        seconds = max(1, min(60, math.ceil(self._answer_seconds * rounds)))
        self.metrics.rejected.inc()
        return ApiError(429, f"{why}; try again in {seconds} s", code="queue_full", retry_after=seconds)

    def _send_jobs(self) -> None:
        """Send waiting jobs to the engine."""
        most = self.max_batch + max(1, self.max_batch // 4)
        while self.state == "ready" and len(self.running) < most:
            job = self.waiting.take_first(self._can_run)
            if job is None:
                break
            self.running[job.id] = job
            job.sent_count += 1
            self._send(job.frame())
        self.adapters.note_requests(job.adapter for job in [*self.running.values(), *self.waiting])
        self.metrics.waiting.labels(self.name).set(len(self.waiting))
        self.metrics.running.labels(self.name).set(len(self.running))

    def _can_run(self, job: AnswerJob) -> bool:
        """Whether the engine can run the job as it is, and a slot of the batch stays free for other clients."""
        if self.is_outdated(job):
            return False
        if job.adapter is not None and job.adapter not in self.adapters.attached:
            return False
        if not self.shared or self.max_batch == 1:
            return True
        own = [other for other in self.running.values() if other.client == job.client]
        return sum(map(self._slots, own)) + self._slots(job) < self.max_batch or not own

    def _slots(self, job: AnswerJob) -> int:
        return places_of_plan(self.max_batch, self.ready.device) if job.prompt.planned and self.ready else 1

    # --- the process ------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        return self._task is not None

    async def start(self) -> None:
        self.metrics.up.labels(self.name).set(0)
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        if self.state != "broken":
            self._set_state("stopped")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        pause, failures = 0.1, 0
        while self.state not in ("broken", "stopped"):
            began, self.beat = time.monotonic(), time.monotonic() + START_SECONDS
            was_ready = False
            try:
                code = await self._run_once()
                was_ready = self.state in ("ready", "stalled")
                self._engine_died(code)
            except Exception:  # a bug here must not end this task, and with it the service
                logger.exception("supervisor failed", extra={"fields": {"model": self.name}})
                self._engine_died(None)
            failures = 0 if was_ready else failures + 1
            if failures == LOADS and self.state != "broken":
                self.failure = f"the engine process died {LOADS} times while loading; {self.failure}"
                self._set_state("broken")
            if self.state == "broken":
                waiting = [self.waiting.take() for _ in range(len(self.waiting))]
                self._fail_all([*self.running.values(), *waiting], f"the model cannot be loaded: {self.failure}")
                self.running.clear()
                self.on_broken()
                return
            # Back off, so that an engine that dies immediately is not restarted ten times per second.
            pause = 0.1 if time.monotonic() - began > 60 else min(2 * pause, 30)
            await asyncio.sleep(pause)

    async def _run_once(self) -> int:
        """Run one engine process until it ends and return its exit status."""
        self.progress = 0.0
        settings = dataclasses.replace(self.settings, adapters=self.adapters.engine_starts())
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gesso.serve.worker",
            json.dumps(dataclasses.asdict(settings)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the server, which lets the engine finish
            env={**allocator_settings(os.environ), **without_keys(os.environ), "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        watchdog = asyncio.create_task(self._watch(process))
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    self._handle(from_engine.decode(await read_frame(process.stdout)))
            return await process.wait()
        except FrameTooLarge as error:
            self.failure = f"invalid output of the engine: {error}"
            return KILLED
        finally:
            watchdog.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill an engine that sends no heartbeat."""
        while True:
            await asyncio.sleep(min(1.0, self.limits.heartbeat / 4))
            silent = time.monotonic() - self.beat
            if silent > self.limits.heartbeat:
                self._kill(process, f"no heartbeat for {silent:.0f} s")
            elif silent > self.limits.heartbeat / 3 and self.state == "ready":
                self._set_state("stalled")

    def _kill(self, process: asyncio.subprocess.Process, why: str) -> None:
        logger.error("engine killed", extra={"fields": {"model": self.name, "reason": why}})
        self.failure = f"the last engine was replaced: {why}"
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            process.kill()

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Loading(share):
                self.progress = share
            case Ready():
                self.ready, self.progress, self.failure = message, 1.0, None
                self.adapters.engine_ready()
                self.metrics.batch.labels(self.name).set(message.max_batch)
                self._set_state("ready")
                logger.info("engine ready", extra={"fields": message.described})
                self._report_outdated(self.waiting)
                self._send_jobs()
            case Broken(failure, final):
                self.failure = failure
                if final:
                    self._set_state("broken")
            case AdapterLoaded() | AdapterFailed():
                if (lost := self.adapters.take(message)) is not None:
                    self._fail_waiting(lost)
                self._send_jobs()
            case Heartbeat():
                self.beat = time.monotonic()
                if self.state == "stalled":
                    self._set_state("ready")
                    self._send_jobs()
                self.metrics.record(self.name, message)
                if message.step_seconds > self.limits.step_timeout and self._process is not None:
                    self._kill(self._process, f"one step took more than {self.limits.step_timeout:g} s")
            case Started(id) if id in self.running:
                self.running[id].started = True
            case Settled(id=id) | Drafted(id=id) | Logprobs(id=id) | CheckAnswer(id=id) if id in self.running:
                self.running[id].report(message)
            case Ended(id=id) | RequestFailed(id=id) if id in self.running:
                job = self.running.pop(id)
                self._answer_seconds += (time.monotonic() - job.created_at - self._answer_seconds) / 20
                job.report(message)
                self._send_jobs()

    def _engine_died(self, code: int | None) -> None:
        """Fail the jobs that a dead engine had started. The others wait for the next engine."""
        self.adapters.engine_died()
        if self.state in ("broken", "stopped"):
            return
        if self.failure is None:
            memory = "; the system probably ran out of memory" if code == KILLED else ""
            self.failure = f"the engine process ended with status {code}{memory}"
        self._set_state("restarting")
        self.metrics.restarts.inc()
        # Fail a job after it has crashed two engines, even if neither reported that it had started.
        started = [job for job in self.running.values() if job.started or job.sent_count > 1]
        for job in reversed([job for job in self.running.values() if job not in started]):
            self.waiting.put_back(job)
        self.running.clear()
        lost = {"exit": code, "lost": len(started), "kept": len(self.waiting), "reason": self.failure}
        logger.error("engine died", extra={"fields": {"model": self.name, **lost}})
        message = "the engine died while generating this answer and is being restarted; try again"
        self._fail_all(started, message, ENGINE_DIED)

    def _fail_waiting(self, adapter: str) -> None:
        """Fail the jobs that wait for an adapter which the new engine cannot load."""
        jobs = [job for job in self.waiting if job.adapter == adapter]
        for job in jobs:
            self.waiting.remove(job)
        self._fail_all(jobs, f"the engine was restarted and cannot load the adapter {adapter} again")

    def _fail_all(self, jobs: Sequence[AnswerJob], message: str, code: str | None = None) -> None:
        for job in jobs:
            job.report(RequestFailed(id=job.id, message=message, by_input=False, code=code))

    def send(self, message: ToEngine) -> None:
        self._send(frame(message))

    def _send(self, data: bytearray) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(data)  # buffered here, so this never blocks

    def _set_state(self, state: State) -> None:
        self.state = state
        self.metrics.up.labels(self.name).set(state == "ready")

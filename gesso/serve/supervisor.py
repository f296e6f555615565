"""The engine process, seen from the server: started, watched, restarted, and fed.

The server is one process with an event loop: HTTP, the queue, tokens to text and back. The model runs in another
(`gesso.serve.worker`), a plain child whose stdin and stdout carry one JSON message a line. So no handler can hold up a
step, no step can hold up a handler, and whatever kills the engine (memory, a driver, `kill -9`) leaves the server there
to say so and to start another.

At most a batch of requests, and a few to fill its gaps, is with the engine at any time; the rest wait here, where
clients take turns. When the engine dies, requests that it had begun get an error: one of them may be the reason. All
others, those with the engine but not begun included, run on the next one, and their clients notice only the delay.
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
from collections.abc import Callable, Sequence
from typing import Literal

from gesso.serve.errors import ApiError
from gesso.serve.fair import FairQueue
from gesso.serve.jobs import Job
from gesso.serve.metrics import Metrics
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
    decode,
    encode,
)
from gesso.serve.settings import EngineSettings, Limits

logger = logging.getLogger("gesso.serve")

LINE = 64 * 2**20  # bytes of the longest message
State = Literal["loading", "ready", "restarting", "broken", "stopped"]


class Supervisor:
    def __init__(self, settings: EngineSettings, limits: Limits, metrics: Metrics) -> None:
        self.settings, self.limits, self.metrics = settings, limits, metrics
        self.state: State = "loading"
        self.progress = 0.0  # of loading
        self.ready: Ready | None = None  # what the newest engine said of itself
        self.trouble: str | None = None  # why the model cannot be loaded
        self.when_broken: Callable[[], None] = lambda: None
        self.ids = itertools.count(1)
        self.waiting: FairQueue[Job] = FairQueue()
        self.running: dict[int, Job] = {}  # those with the engine
        self.adapter: str | None = None  # the one these use
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._seconds = 1.0  # of an answer, a running mean

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take in the jobs of one HTTP request, all or none."""
        if self.state == "broken":
            raise ApiError(503, f"the model cannot be loaded: {self.trouble}")
        if len(self.waiting) + len(jobs) > self.limits.queue:
            raise self._full(f"{len(self.waiting)} requests wait already")
        held = sum(job.tokens for job in self.running.values()) + self.waiting_tokens
        if self.limits.total_tokens is not None and held + sum(job.tokens for job in jobs) > self.limits.total_tokens:
            raise self._full(f"requests of {held} tokens are under way, and {self.limits.total_tokens} is the limit")
        for job in jobs:
            self.waiting.put(job)
        self._feed()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody waits for these any more; those that have ended are left alone."""
        for job in jobs:
            self.waiting.remove(job)
            if self.running.pop(job.id, None) is not None:
                self._send(Cancel(job.id))
        self._feed()

    @property
    def waiting_tokens(self) -> int:
        return sum(job.tokens for job in self.waiting)

    def _full(self, why: str) -> ApiError:
        rounds = 1 + len(self.waiting) / self.settings.max_batch
        seconds = max(1, min(60, math.ceil(self._seconds * rounds)))
        self.metrics.rejected.inc()
        return ApiError(429, f"{why}; try again in {seconds} s", code="queue_full", retry_after=seconds)

    def _feed(self) -> None:
        """Hand over as much as the engine can use. One adapter acts at a time: another waits until all have ended."""
        room = self.settings.max_batch + max(1, self.settings.max_batch // 4)
        while self.state == "ready" and len(self.running) < room and (job := self.waiting.first()) is not None:
            if self.running and job.adapter != self.adapter:
                break
            self.waiting.take()
            self.adapter = job.adapter
            self.running[job.id] = job
            job.handed_over += 1
            self._send(job.submit())
        self.metrics.waiting.set(len(self.waiting))
        self.metrics.running.set(len(self.running))

    # --- the process ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        self._change("stopped")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        pause = 0.1
        while self.state not in ("broken", "stopped"):
            began = time.monotonic()
            await self._run_once()
            if self.state == "broken":
                self._fail_all(self._take_all(), f"the model cannot be loaded: {self.trouble}")
                self.when_broken()
                return
            # An engine that dies at once, again and again, is not asked for ten times a second.
            pause = 0.1 if time.monotonic() - began > 60 else min(2 * pause, 30)
            await asyncio.sleep(pause)

    async def _run_once(self) -> None:
        self.progress = 0.0
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gesso.serve.worker",
            json.dumps(dataclasses.asdict(self.settings)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE,
            start_new_session=True,  # Ctrl-C is for the server, which lets the engine finish
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._hear(decode(line))
            code = await process.wait()
            self._bury(code)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _hear(self, message: Message) -> None:
        match message:
            case Loading(share):
                self.progress = share
            case Ready():
                self.ready, self.progress, self.adapter = message, 1.0, None
                self._change("ready")
                logger.info("engine ready", extra={"fields": dataclasses.asdict(message)})
                self._feed()
            case Broken(trouble):
                self.trouble = trouble
                self._change("broken")
            case Started(id) if id in self.running:
                self.running[id].started = True
            case Settled(id) | Drafted(id) if id in self.running:
                self.running[id].mailbox.put(self.running[id], message)
            case Ended(id) | Failed(id) if id in self.running:
                job = self.running.pop(id)
                self._seconds += (time.monotonic() - job.asked_at - self._seconds) / 20
                job.mailbox.put(job, message)
                self._feed()

    def _bury(self, code: int) -> None:
        """The engine has died: those it had begun end with it, the others wait for the next one."""
        if self.state in ("broken", "stopped"):
            return
        self._change("restarting")
        self.metrics.restarts.inc()
        # One that two engines have died on before they could say they had begun it gets no third.
        begun = [job for job in self.running.values() if job.started or job.handed_over > 1]
        for job in reversed([job for job in self.running.values() if job not in begun]):
            self.waiting.put_back(job)
        self.running.clear()
        logger.error("engine died", extra={"fields": {"exit": code, "lost": len(begun), "kept": len(self.waiting)}})
        self._fail_all(begun, "the engine died while it wrote this answer; it is being restarted, ask again")

    def _fail_all(self, jobs: Sequence[Job], message: str) -> None:
        for job in jobs:
            job.mailbox.put(job, Failed(job.id, message, by_input=False))

    def _take_all(self) -> list[Job]:
        jobs = [*self.running.values(), *(self.waiting.take() for _ in range(len(self.waiting)))]
        self.running.clear()
        return jobs

    def _send(self, message: Message) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(message))  # buffered here: it never waits

    def _change(self, state: State) -> None:
        self.state = state
        self.metrics.up.set(state == "ready")

"""The engine loop. `generate()` runs an engine with one request; a server runs the same engine with many."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from gesso.backends import Backend, for_model
from gesso.constraints.budget import deadline, going_first
from gesso.diffusion.canvas import Canvas
from gesso.diffusion.noise import HashSource, NoiseSource
from gesso.engine.adapters import AdapterTable
from gesso.engine.canvases import first_canvas, next_canvas
from gesso.engine.ending import commit, result
from gesso.engine.events import Done, Draft, Event, Failed, Finish, Likely, Scored
from gesso.engine.faults import check_finite, drop_frames, is_fatal
from gesso.engine.final_text import Decode, final_tokens, would_be_empty
from gesso.engine.prefix_files import PrefixFiles
from gesso.engine.request import Request, Score
from gesso.engine.runner import SEARCH_TIMES, CanvasOutcome, Encoded, Runner, SearchTimes
from gesso.engine.running import Running
from gesso.engine.scheduler import Job, Row, ScheduledWork, Scheduler
from gesso.engine.scoring import Scoring
from gesso.engine.searches import Searches
from gesso.engine.starting import start
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

PREFILL = 2048  # tokens of prompts that a pass reads on a GPU
PIECE = 256  # tokens of a prompt that are encoded at once; more would change the last bits of a text


class Engine:
    """Run requests on one model, several at a time. Call `submit`, then `step` until it has returned the last event."""

    def __init__(
        self,
        model: DiffusionGemma,
        decode: Decode,
        *,
        max_batch: int = 8,
        max_length: int | None = None,
        prefill: int = PREFILL,
        piece: int = PIECE,
        source: NoiseSource | None = None,
        backend: Backend | None = None,
        search_times: SearchTimes = SEARCH_TIMES,
    ) -> None:
        """Make an engine that runs `max_batch` requests at once.

        A pass reads up to `prefill` tokens of prompts and of texts to score, in pieces of `piece` tokens.
        """
        longest = model.config.max_position_embeddings
        for name, value in (("max_batch", max_batch), ("max_length", longest if max_length is None else max_length)):
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a positive integer, got {value!r}")
        self.model, self.decode, self.source = model, decode, source or HashSource()
        self.max_length = longest if max_length is None else min(max_length, longest)
        self.scheduler = Scheduler(max_batch, max(prefill, piece), piece)
        self.runner = Runner(backend or for_model(model), self.source, search_times)
        self.runner.backend.expect(max_batch, model.config.canvas_length, self.scheduler.prefill)
        self.times = search_times
        self.cache = model.new_cache(0, 0)
        self.adapters = AdapterTable(self.runner.backend.adapters_changed)
        self.ids = itertools.count()
        self.running: dict[int, Job] = {}  # all unfinished requests, including waiting ones
        self.cancelled: set[int] = set()
        self.cut_short: set[int] = set()
        self.searches = Searches()
        self.prefixes: PrefixFiles | None = None  # prompts that were read before, for requests without an adapter
        self.on_read: Callable[[int, int], None] | None = None  # told how many tokens of how many have been read
        self.outbox: list[Event] = []  # events until `step` returns, so that an error loses none of them

    # --- the loop -----------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Admit requests, run one pass over all work that is ready, and return its events.

        An error in a pass fails the request that causes it. It is raised only if the process has to be restarted.
        """
        self._finish_cancelled()
        self._finish_cut_short()
        self._admit()
        if work := self.scheduler.plan([job for job in self.scheduler.running if not self.searches.holds(job.id)]):
            pass_error = None
            try:
                with going_first(self.runner.captures):
                    self._pass(work)
            except Exception as error:
                pass_error = error
            if pass_error is not None:  # outside of `except`: an error being handled keeps the tensors of its frames
                self._isolate(work, pass_error)
        else:
            self.searches.wait(self.times.between_passes)
            self.searches.run(deadline(self.times.between_passes))
        self._take_found()
        self._free_adapters()
        events, self.outbox = self.outbox, []
        return events

    def check(self, request: Request | Score) -> None:
        """Raise InputError for a request that `submit` would reject.

        Of a request that was checked when it was built, only what depends on this engine is checked again.
        """
        if isinstance(request, Request) and request.constraint is not None:
            raise InputError("the constraint of the request is not attached; see gesso.request.build.attach")
        if isinstance(request, Request) and request.is_checked:
            request.check_context(self.max_length)
        else:
            request.check(self.model.config, self.max_length)
        self.adapters.check(request.adapter)
        if isinstance(request, Request) and request.images and self.model.vision is None:
            raise InputError("the model has no vision tower: load a checkpoint that has one, without text_only")

    def submit(self, request: Request | Score) -> int:
        """Queue a request and return its id, which identifies it in events and in `cancel`."""
        self.check(request)
        job = self._start(request)
        job.adapter_epoch = self.adapters.adapter_epoch(request.adapter)
        self.running[job.id] = job
        self.scheduler.waiting.append(job)
        return job.id

    def _start(self, request: Request | Score) -> Job:
        return start(next(self.ids), request, self.model, self.source, self.decode, self.scheduler.piece)

    def cancel(self, request_id: int) -> None:
        """End a request before the next pass. A request that has ended is ignored."""
        if request_id in self.running:
            self.cancelled.add(request_id)

    def cut_short_at(self, request_id: int) -> None:
        """End a request before the next pass with the text that is final by then, as if it had reached its length."""
        if request_id in self.running:
            self.cut_short.add(request_id)

    def store_prefixes(self, files: PrefixFiles) -> None:
        """Keep prompts in files, and read those that are there."""
        self.prefixes, self.scheduler.apart = files, True

    def add_adapter(self, name: str, free: Callable[[], None] = lambda: None) -> None:
        """Allow requests with an adapter that has been attached to the model. `free` detaches it; by default it stays.

        If the backend cannot take it, free it and raise the error.
        """
        self.adapters.add(name, free)

    def retire_adapter(self, name: str) -> None:
        """Reject new requests with an adapter, and free it as soon as those that run have ended."""
        self.adapters.retire(name)
        self._free_adapters()

    def _free_adapters(self) -> None:
        if self.adapters.retired:
            unfinished = self.running.keys() - self.cancelled
            self.adapters.free_unused({self.running[job_id].request.adapter for job_id in unfinished})

    @property
    def captures_left(self) -> int:
        """The number of passes that a server captures and that have not been captured yet."""
        return self.runner.backend.captures_left if self.runner.captures else 0

    def capture_next(self) -> None:
        """Capture the one of these passes that is needed most."""
        self.runner.backend.capture_next(self.cache)

    @property
    def busy(self) -> bool:
        """Whether there are requests that have neither ended nor been cancelled."""
        return bool(self.running.keys() - self.cancelled)

    # --- admission ----------------------------------------------------------------------------------------------

    def _finish_cancelled(self) -> None:
        while self.cancelled:
            job = self.running[self.cancelled.pop()]
            if isinstance(job, Scoring):
                self._remove(job, job.event())
            elif job.request.compared:
                self._remove(job, Scored(job.id, (), job.usage))
            else:
                self._finish(job, "cancelled")

    def _finish_cut_short(self) -> None:
        while self.cut_short:
            running = self.running[self.cut_short.pop()]
            assert isinstance(running, Running), "only generated text is cut short"
            tokens = final_tokens(running.request, running.canvas, running.tokens, self.decode)
            if len(tokens) > len(running.tokens):
                running.tokens = list(tokens)
                running.shown = self.decode(tokens)
            self._finish(running, "length")

    def _admit(self) -> None:
        while (row := self.scheduler.next_row(self.cache)) is not None:
            running = self.scheduler.waiting[0]
            prompt = running.request.prompt
            try:
                self._reserve(row, running.request.cache_tokens)
            except Exception as error:  # out of memory: only this request fails
                self._fail(running, error)
                continue
            # Scoring and decoding by token need the hidden state of the last prompt token, so that token must be
            # encoded.
            needs_last = isinstance(running, Scoring) or running.request.diffusion.by_token
            needed = prompt[:-1] if needs_last else prompt
            cached = self.scheduler.reusable(row, running, len(needed), self.cache)
            files = None if running.adapter_epoch else self.prefixes
            if files is not None and files.stored(needed, running.cuts) > cached:
                self.cache.cut(row, 0)
                cached = files.read(self.cache, row, needed, running.cuts)
            running.row = row
            running.usage = replace(running.usage, prompt_tokens=len(prompt), cached_tokens=cached)
            self._read_from(running, cached)
            self.scheduler.running.append(self.scheduler.waiting.popleft())

    def _reserve(self, row: int, length: int) -> None:
        while row >= len(self.cache.lengths):
            self.cache.add_row(0)
        if length > self.cache.capacities[row]:  # at least double: a chat grows with every turn
            self.cache.grow(row, max(length, min(max(2 * self.cache.capacities[row], 512), self.max_length)))

    def _read_from(self, running: Job, start: int) -> None:
        """Cut the request's cache row back to `start` tokens, and queue the rest of its text."""
        self.cache.cut(running.row, start)
        held = list(running.request.prompt[:start])
        self.scheduler.rows[running.row] = Row(held, running.cuts, start, running.adapter_epoch, used=running.id + 1)
        running.pending = running.pieces(start)

    # --- one pass -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _pass(self, work: list[ScheduledWork]) -> None:
        """Run one pass and advance every request in it. If a request's own step fails, only that request fails."""
        began = time.monotonic()
        try:
            outcomes = self.runner.run(work, self.cache, self._search_beside)
            for item in work:
                self._note(item)
        except BaseException:  # Ctrl-C too: rows that were being written are in an unknown state, so encode them again
            for item in work:
                if item.writes:
                    self._read_from(item.running, 0)
            raise
        seconds = time.monotonic() - began
        at_once = deadline(min(max(self.times.least_at_once, seconds), self.times.most_at_once))
        for outcome in outcomes:
            if isinstance(outcome, Encoded):
                self._try(outcome.running, partial(self._score, outcome))
            else:
                self._try(outcome.running, partial(self._advance, outcome, at_once))
        # If there are others, they do not wait: the searches run beside their next pass, or where none can, after it.
        if not self.runner.captures:
            self.searches.run(deadline(seconds * self.times.share))
        elif not any(each.denoising and not each.denoising.is_constrained for each in work):
            self.searches.run(deadline(self.times.between_passes))

    def _search_beside(self) -> None:
        """Search while the device runs a pass."""
        if self.runner.captures and self.searches.waiting:
            self.searches.run(self.runner.is_over())

    def _try(self, running: Job, step: Callable[[], None]) -> None:
        """Take a request's own step. If it fails, only that request fails."""
        try:
            step()
        except Exception as error:
            if is_fatal(error):
                raise
            self._fail(running, error)

    def _isolate(self, work: list[ScheduledWork], error: Exception) -> None:
        """After a failed pass, run each of its requests alone, and fail those that fail alone."""
        if is_fatal(error):
            raise error
        drop_frames(error)
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if out_of_memory:
            self.runner.free_memory()
        if len(work) == 1 and not out_of_memory:
            self._fail(work[0].running, error)
            return
        for item in work:
            try:
                self._alone(item)
            except Exception as own:
                if is_fatal(own):
                    raise
                self._fail(item.running, own)

    def _alone(self, item: ScheduledWork) -> None:
        """Redo one request's part of a failed pass. If its row was being written, first encode its text again.

        This may take several passes. Stopping earlier would let an error further on break the next joint pass.
        """
        running = item.running
        for redo in iter(lambda: self.scheduler.plan([running]), []):
            self._pass(redo)
            if redo[0].end >= item.end or running.id not in self.running:
                return

    def _note(self, item: ScheduledWork) -> None:
        """Record the contents of a row, and save the row at the length to which it will be cut back later."""
        row, prompt = self.scheduler.rows[item.running.row], len(item.running.request.prompt)
        for text in item.texts:
            item.running.pending.popleft()
            is_next = len(row.tokens) == row.whole  # in verified decoding, other texts may end where a piece would
            row.tokens += text
            if is_next and row.cuts.has(len(row.tokens)):
                row.whole = len(row.tokens)
        if item.texts and row.whole == len(row.tokens) == item.running.saved_length:
            self.cache.save(item.running.row, len(row.tokens))
        if item.texts and row.whole == len(row.tokens) and self.prefixes and not row.adapter_epoch:
            self.prefixes.write(self.cache, item.running.row, row.tokens, row.cuts)
        if item.texts and self.on_read is not None and len(row.tokens) <= prompt:
            self.on_read(len(row.tokens), prompt)

    def _advance(self, outcome: CanvasOutcome, at_once: Callable[[], bool]) -> None:
        """Take the step of a canvas, or note the search that it needs before. `at_once`: see `SearchTimes`."""
        if outcome.running.request.compared:
            self._compare(outcome)
            return
        canvas_or_search = outcome.advance()
        if isinstance(canvas_or_search, Canvas):
            self._advanced(outcome, lambda: canvas_or_search)
        else:
            self.searches.add(outcome, canvas_or_search)
            if not self.runner.captures:  # at once: nothing runs beside it, and only one request has its logits
                self.searches.run(at_once)
                self._take_found()

    def _take_found(self) -> None:
        """Take the steps for which a search has found the tokens."""
        for outcome, take in self.searches.taken():
            self._try(outcome.running, partial(self._advanced, outcome, take))

    def _advanced(self, outcome: CanvasOutcome, take: Callable[[], Canvas]) -> None:
        """Replace a canvas by the one after its step, and commit it if it is done."""
        running, request = outcome.running, outcome.running.request
        running.canvas = canvas = take()
        running.usage = replace(running.usage, denoising_steps=running.usage.denoising_steps + 1)
        likely = self.runner.likely(outcome, canvas, request.draft_logprobs)
        self.outbox.append(Draft(running.id, request, canvas, tuple(running.tokens), self.decode, tuple(likely)))
        if canvas.reason is None:
            return
        check_finite(canvas)
        if request.diffusion.verified:
            self._take_back(running)
        if would_be_empty(canvas, request) and not request.diffusion.by_token:
            running.canvas = first_canvas(request, running.process, self.model.config, attempt=1)
            running.usage = replace(running.usage, redrawn=running.usage.redrawn + 1)
        else:
            self._commit(running, canvas.result_C.tolist(), self.runner.likely(outcome, canvas, request.top_logprobs))

    def _take_back(self, running: Running) -> None:
        """Cut rejected drafted tokens off the row. The last decided token is not in it yet."""
        row, known = self.scheduler.rows[running.row], (running.request.prompt[-1], *running.tokens)[-1]
        row.tokens += [known, *running.canvas.tokens_C[:-1].tolist()]
        self.cache.cut(running.row, len(row.tokens))

    def _score(self, encoded: Encoded) -> None:
        """Score the positions that were read. After the last token of a text, continue with the next text."""
        scoring = encoded.running
        self.runner.score(encoded)
        if scoring.pending:
            return
        if len(scoring.log_likelihoods) == len(scoring.request.texts):
            self._remove(scoring, scoring.event())
            return
        saved = scoring.saved_length
        self._read_from(scoring, saved if self.cache.can_cut(scoring.row, saved) else 0)

    def _compare(self, outcome: CanvasOutcome) -> None:
        """End a request that compares texts with their log-probabilities in the first prediction."""
        running = outcome.running
        usage = replace(running.usage, denoising_steps=1)
        self._remove(running, Scored(running.id, self.runner.compare(running, outcome.hidden_CH), usage))

    # --- end of a canvas, and of the text -----------------------------------------------------------------------

    def _commit(self, running: Running, tokens: list[int], likely: list[Likely]) -> None:
        """Append the tokens of a canvas to the text. Then end the text, or go on."""
        event, finish, stop = commit(running, tokens, likely, self.decode)
        self.outbox.append(event)
        if finish is not None:
            self._finish(running, finish, stop)
            return
        # In verified decoding they are in the KV cache already: the next canvas depends on them.
        if not running.request.diffusion.verified:
            running.pending.append(tuple(tokens))
        running.canvas = next_canvas(running, tokens, self.model.config)

    def _finish(self, running: Running, reason: Finish, stop: str | None = None) -> None:
        self._remove(running, Done(running.id, result(running, reason, stop)))

    def _fail(self, running: Job, error: Exception) -> None:
        drop_frames(error)
        self._remove(running, Failed(running.id, error))

    def _remove(self, running: Job, last: Event) -> None:
        self.scheduler.remove(running)
        del self.running[running.id]
        self.cancelled.discard(running.id)
        self.cut_short.discard(running.id)
        self.searches.drop(running.id)
        self.outbox.append(last)

"""The one loop. A single `generate()` is an engine with one request; a server is the same engine with many."""

import itertools
from collections.abc import Sequence as Tokens
from dataclasses import replace

from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.noise import HashSource, Source
from gesso.engine.events import Commit, Decode, Done, Draft, Event, Failed, Finish, Result
from gesso.engine.request import Request, Sequence
from gesso.engine.runner import Outcome, Runner
from gesso.engine.scheduler import Row, Scheduler, Work
from gesso.model.transformer import DiffusionGemma


class Engine:
    def __init__(
        self,
        model: DiffusionGemma,
        decode: Decode,
        *,
        max_batch: int = 8,
        max_length: int | None = None,
        prefill: int = 2048,
        piece: int = 256,
        source: Source | None = None,
    ) -> None:
        """`max_batch` requests run at once; `prefill` tokens of prompts are read in one pass, in pieces of `piece`."""
        self.model, self.decode, self.source = model, decode, source or HashSource()
        self.max_length = min(max_length or model.config.max_position_embeddings, model.config.max_position_embeddings)
        self.scheduler = Scheduler(max_batch, max(prefill, piece), piece)
        self.runner = Runner(model)
        self.cache = model.new_cache(1, min(1024, self.max_length))
        self.ids = itertools.count()
        self.sequences: dict[int, Sequence] = {}
        self.cancelled: set[int] = set()

    # --- the loop -----------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Take in and let go, run one pass over all that is ready, and hand out what it brought."""
        events = self._let_go()
        self._take_in()
        for outcome in self._run(self.scheduler.plan()):
            try:
                events += self._advance(outcome)
            except Exception as error:  # a sampler or stopping rule of the caller's own: it takes nobody with it
                events.append(self._fail(outcome.sequence, error))
        return events

    def check(self, request: Request) -> None:
        """Raise InputError for a request that `submit` would refuse."""
        request.check(self.model.config, self.max_length)

    def submit(self, request: Request) -> int:
        """Queue a request; its id names it in events and in `cancel`."""
        self.check(request)
        process = Process(
            settings=request.diffusion,
            source=self.source,
            seed=request.seed,
            vocab_size=self.model.config.vocab_size,
            eos=request.eos,
            device=self.model.device,
        )
        sequence = Sequence(next(self.ids), request, process, self._blank(request, process, 0, 0))
        if request.resume is not None:
            sequence.canvas, sequence.tokens = request.resume.canvas, list(request.resume.before)
        self.sequences[sequence.id] = sequence
        self.scheduler.waiting.append(sequence)
        return sequence.id

    def cancel(self, request_id: int) -> None:
        """End a request before the next pass; one that has ended is left alone."""
        if request_id in self.sequences:
            self.cancelled.add(request_id)

    @property
    def busy(self) -> bool:
        return bool(self.sequences)

    # --- its parts ----------------------------------------------------------------------------------------------

    def _let_go(self) -> list[Event]:
        cancelled, self.cancelled = self.cancelled, set()
        return [self._finish(self.sequences[i], "cancelled") for i in sorted(cancelled)]

    def _take_in(self) -> None:
        while (sequence := self.scheduler.admit(self.cache)) is not None:
            prompt = sequence.request.prompt
            self._make_room(sequence.row + 1, len(prompt) + sequence.request.max_new_tokens)
            cached = self.scheduler.reusable(sequence.row, prompt, self.cache)
            sequence.usage = replace(sequence.usage, prompt_tokens=len(prompt), cached_tokens=cached)
            self._read_from(sequence, cached)

    def _make_room(self, rows: int, length: int) -> None:
        rows = max(rows, len(self.cache.lengths))
        length = max(min(-(-length // 1024) * 1024, self.max_length), self.cache.max_length)
        if (rows, length) != (len(self.cache.lengths), self.cache.max_length):
            self.cache = self.cache.grown(rows, length)

    def _read_from(self, sequence: Sequence, start: int) -> None:
        """Cut the sequence's row of the cache back to `start` tokens, and have the rest of the text read."""
        self.cache.cut(sequence.row, start)
        self.scheduler.rows[sequence.row] = Row(list(sequence.request.prompt[:start]), whole=start)
        canvas_length = sequence.request.canvas_length(self.model.config)
        sequence.pending = sequence.pieces(start, self.scheduler.piece, canvas_length)

    def _run(self, work: list[Work]) -> list[Outcome]:
        try:
            outcomes = self.runner.run(work, self.cache) if work else []
        except BaseException:  # Ctrl-C too: rows that were being written are in no known state and must be read anew
            for item in work:
                if item.texts:
                    self._read_from(item.sequence, 0)
            raise
        for item in work:
            self._note(item)
        return outcomes

    def _note(self, item: Work) -> None:
        """Write down what a row now holds, and save it at the last whole piece of the prompt."""
        row, piece = self.scheduler.rows[item.sequence.row], self.scheduler.piece
        prompt = len(item.sequence.request.prompt)
        for text in item.texts:
            item.sequence.pending.popleft()
            row.tokens += text
            if len(row.tokens) <= prompt and len(text) == piece:
                row.whole = len(row.tokens)
        if item.texts and row.whole == len(row.tokens) == prompt - prompt % piece:
            self.cache.save(item.sequence.row)

    def _advance(self, outcome: Outcome) -> list[Event]:
        sequence, request = outcome.sequence, outcome.sequence.request
        canvas = sequence.process.advance(sequence.canvas, outcome.prediction, outcome.soft_CH)
        sequence.canvas = canvas
        sequence.usage = replace(sequence.usage, denoising_steps=sequence.usage.denoising_steps + 1)
        events: list[Event] = [Draft(sequence.id, canvas, tuple(sequence.tokens), request.diffusion.steps, self.decode)]
        if canvas.reason is None:
            return events
        tokens = canvas.result_C.tolist()
        if self._would_be_empty(sequence, tokens):
            sequence.canvas = self._blank(request, sequence.process, 0, 0, attempt=1)
            sequence.usage = replace(sequence.usage, redrawn=sequence.usage.redrawn + 1)
            return events
        return events + self._commit(sequence, tokens)

    def _commit(self, sequence: Sequence, tokens: list[int]) -> list[Event]:
        """A canvas stands: trim it, end the text there or go on with the next canvas."""
        request, before = sequence.request, len(sequence.tokens)
        sequence.usage = replace(sequence.usage, canvases=sequence.usage.canvases + 1)
        end = next((i for i, token in enumerate(tokens) if token in request.eos), None)
        sequence.tokens += tokens[:end]
        text = self.decode(sequence.tokens)
        finish: Finish | None = None
        if stops := [at for at in map(text.find, request.stop) if at >= 0]:
            finish, text = "stop", text[: min(stops)]
            sequence.tokens = sequence.tokens[: self._tokens_for(sequence.tokens, len(text))]
        elif end is not None:
            finish = "stop"
        elif len(sequence.tokens) == request.max_new_tokens:
            finish = "length"
        # A character whose bytes the canvas cuts in two decodes to a replacement mark; the next canvas completes it.
        shown = text if finish else text.rstrip("\ufffd")
        new = tuple(sequence.tokens[before:])
        events: list[Event] = [Commit(sequence.id, sequence.canvas.index, new, shown[len(sequence.shown) :])]
        sequence.shown = shown
        if finish is not None:
            return [*events, self._finish(sequence, finish)]
        # Committing is encoding: the canvas is the next piece of text to read, and the next canvas stands on it.
        sequence.pending.append(tuple(tokens))
        sequence.canvas = self._blank(request, sequence.process, sequence.canvas.index + 1, len(sequence.tokens))
        return events

    def _fail(self, sequence: Sequence, error: Exception) -> Failed:
        self._remove(sequence)
        return Failed(sequence.id, error)

    def _remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        del self.sequences[sequence.id]

    def _finish(self, sequence: Sequence, reason: Finish) -> Done:
        self._remove(sequence)
        usage = replace(sequence.usage, completion_tokens=len(sequence.tokens))
        result = Result(sequence.shown, tuple(sequence.tokens), reason, usage, sequence.request.seed)
        return Done(sequence.id, result)

    def _blank(self, request: Request, process: Process, index: int, done: int, attempt: int = 0) -> Canvas:
        """The canvas that begins after `done` new tokens; no longer than what is still wanted."""
        length = min(request.canvas_length(self.model.config), request.max_new_tokens - done)
        pins = {at - done: token for at, token in request.pins.items() if done <= at < done + length}
        return process.blank(index, length, pins, attempt)

    def _would_be_empty(self, sequence: Sequence, tokens: list[int]) -> bool:
        canvas, request = sequence.canvas, sequence.request
        return canvas.index == 0 and canvas.attempt == 0 and 0 not in request.pins and tokens[0] in request.never_first

    def _tokens_for(self, tokens: Tokens[int], characters: int) -> int:
        """How many tokens it takes to write that many characters."""
        low, high = 0, len(tokens)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if len(self.decode(tokens[:middle])) < characters else (low, middle)
        return low

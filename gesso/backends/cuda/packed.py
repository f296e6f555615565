"""The captured passes of a server: few shapes that serve every mixture of requests.

A pass has a part for texts and a part for canvases, each of a fixed number of tokens. The texts lie side by side in the
first part and the canvases in the second, of any number and length, with padding after them. Lengths, rows, adapters
and settings are data (`slots.py`), so requests that join or leave change no shape. Kernels compute each token alone:
padding changes no bits.

  texts alone        prompts
  canvases alone     denoising steps
  both               steps beside a short text: a committed canvas, or a piece of a prompt

T tokens of all canvases, B slots, C longest canvas, H hidden.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gesso.backends.base import Counts, Denoising, Piece, Replayed, Step, Work
from gesso.backends.cuda.captured import Captured
from gesso.backends.cuda.compiling import compiling_only
from gesso.backends.cuda.families import launching
from gesso.backends.cuda.kernels.segments import Segment
from gesso.backends.cuda.network import note, segments_of
from gesso.backends.cuda.passes import TEXTS, Passes, denoising, scored, texts_of
from gesso.backends.cuda.slots import Slots, takes_step
from gesso.diffusion.hash import send
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import temperature
from gesso.model.cache import KVCache

BESIDE = 256  # tokens of text in passes with both: a piece of a prompt, or a canvas


@dataclass(frozen=True, order=True)
class Packing:
    """The shape of a pass."""

    tokens: int  # of canvases; 0: none
    room: int  # tokens of texts; 0: none


@dataclass(frozen=True)
class Expected:
    """The requests of a server."""

    batch: int
    canvas: int  # tokens of a full canvas
    prefill: int  # tokens of text in a pass

    @property
    def longest_text(self) -> int:
        return max(BESIDE, self.canvas)

    @property
    def texts(self) -> int:
        """The number of texts in a pass: whole pieces of prompts, and two more for each request."""
        return self.prefill // BESIDE + 2 * self.batch

    @property
    def most_text(self) -> int:
        """The tokens of text in a pass: committed canvases come on top of prompts."""
        return self.prefill + self.batch * self.canvas

    def packings(self) -> list[Packing]:
        """Return the shapes of the server's passes, those needed most first. The very first take the most memory.

        With one more canvas of 256 tokens, a step of the 26B in FP8 takes 3.7 ms more on an H200, whether the canvas is
        padding or not. A capture takes 0.2 s, once. So up to 8 whole canvases are never padded, and more of them by
        less than a fifth.
        """
        canvas, prefill = self.canvas, self.prefill
        counts = [n for n in range(1, self.batch + 1) if n <= 8 or n % (2 if n <= 16 else 4) == 0 or n == self.batch]
        whole = [n * canvas for n in counts]
        parts = [canvas // 4, canvas // 2, canvas * 3 // 4, canvas * 3 // 2, canvas * 5 // 2]
        beside = min(BESIDE, prefill)
        powers = [2**bits for bits in range(5, prefill.bit_length()) if 2**bits < prefill]
        rooms = sorted({*powers, *(room * 3 // 4 for room in powers if room > BESIDE), prefill * 3 // 4, prefill})
        packings = [
            Packing(whole[-1], beside),
            Packing(0, self.most_text),
            *(Packing(tokens, 0) for tokens in whole),
            *(Packing(tokens, beside) for tokens in whole),
            *(Packing(0, room) for room in rooms if room),
            *(Packing(tokens, 0) for tokens in parts if 0 < tokens < whole[-1]),
        ]
        return list(dict.fromkeys(packings))


class PackedPass(Captured):
    """The tensors and the captured operations of the passes of one packing."""

    def __init__(self, backend: Passes, packing: Packing, slots: Slots, expected: Expected, cache: KVCache) -> None:
        model = backend.model
        super().__init__(model.device)
        self.backend = backend
        self.packing = packing
        self.slots = slots
        self.text_slots = expected.texts
        self.text_S = torch.zeros(packing.room, dtype=torch.long, device=model.device)
        # of each token, its place in all slots, and its slot; then of each place, its token
        self.from_2T = torch.zeros(2, packing.tokens, dtype=torch.long, device=model.device)
        self.to_P = torch.zeros(slots.count * slots.length, dtype=torch.long, device=model.device)
        self.placed: tuple[tuple[int, int], ...] = ()  # slot and length of the canvases in these tables
        self.lengths = [packing.tokens]  # of the canvases and of the padding
        parts = [length for length in (packing.room, packing.tokens) if length]
        longest = max(min(packing.room, expected.longest_text), min(packing.tokens, slots.length))
        self.plan = backend.plan(self._segments((), cache), cache, parts, longest)

    def run(self, work: Sequence[Work], cache: KVCache) -> Replayed:
        """Run the pass with this work."""
        segments = self._segments(work, cache)
        self.plan.move(segments, cache)
        if self.packing.room:
            tokens = texts_of(work)
            self.text_S[: len(tokens)].copy_(send(torch.tensor(tokens), self.device))
        requests = denoising(work)
        placed = self._place(requests)
        self.replay()
        self.has_run = True
        note(segments, cache)
        return Replayed(partial(self._steps, placed), scored(work, self.hidden[0]) if self.packing.room else [])

    def dry_run(self) -> None:
        """Run the pass without work."""
        self._pass()
        self.slots.clear()

    def _place(self, requests: Sequence[Denoising]) -> list[tuple[int, Denoising]]:
        if not self.packing.tokens:
            return []
        lengths = [len(request.canvas.tokens_C) for request in requests]
        slots = self.slots.place(requests)
        if self.placed != (placed := tuple(zip(slots, lengths, strict=True))):
            size, offset = self.slots.length, 0
            from_2T, to_P = (
                torch.zeros(self.from_2T.shape, dtype=torch.long),
                torch.zeros(len(self.to_P), dtype=torch.long),
            )
            for slot, length in placed:
                places, tokens = slice(slot * size, slot * size + length), slice(offset, offset + length)
                from_2T[0, tokens], from_2T[1, tokens] = torch.arange(places.start, places.stop), slot
                to_P[places] = torch.arange(offset, offset + length)
                offset += length
            self.from_2T.copy_(send(from_2T, self.device))
            self.to_P.copy_(send(to_P, self.device))
            self.placed = placed
        # On a GPU the kernels do not read them. The plain operations run segment by segment.
        self.lengths[:] = [*lengths, self.packing.tokens - sum(lengths)]
        return list(zip(slots, requests, strict=True))

    def _segments(self, work: Sequence[Work], cache: KVCache) -> list[Segment]:
        """Return the segments of texts and canvases, each kind followed by unused segments and padding."""
        pieces = [
            (item.row, length, kind, self.backend.slot(item.adapter)) for item in work for length, kind in item.pieces
        ]
        pieces.sort(key=lambda piece: piece[2] not in TEXTS)
        used = segments_of([(row, length, kind != "canvas", slot) for row, length, kind, slot in pieces], cache)
        texts = [segment for segment in used if segment.causal]
        canvases = [segment for segment in used if not segment.causal]
        segments: list[Segment] = []
        if self.packing.room:
            segments += _filled(texts, self.text_slots, self.packing.room, True, cache)
        if self.packing.tokens:
            segments += _filled(canvases, self.slots.count, self.packing.tokens, False, cache)
        return segments

    def _steps(self, placed: Sequence[tuple[int, Denoising]]) -> list[Step]:
        if not placed:
            return []
        lengths = [len(request.canvas.tokens_C) for _, request in placed]
        count = sum(lengths)
        stepping = [(slot, request) for slot, request in placed if takes_step(request)]
        canvases = self.slots.advanced(stepping, self.advanced)
        after = {id(request): canvas for (_, request), canvas in zip(stepping, canvases, strict=True)}
        used = Prediction(**{name: tensor[:count] for name, tensor in self.prediction.tensors().items()})
        hidden = self.hidden[-1][:count].split(lengths)
        steps = []
        for (_, request), prediction, hidden_CH in zip(placed, used.split(lengths), hidden, strict=True):
            canvas = after.get(id(request))
            needs_prediction = not request.needs_all_logits and (canvas is None or request.is_constrained)
            own_hidden_CH = hidden_CH.clone() if request.is_constrained else hidden_CH
            steps.append(Step(prediction.clone() if needs_prediction else None, canvas, own_hidden_CH))
        return steps

    # --- the captured operations ----------------------------------------------------------------------------------

    def _pass(self) -> None:
        slots, state = self.slots, self.slots.canvas
        pieces = [Piece(-1, self.text_S, causal=True)] if self.packing.room else []
        if not self.packing.tokens:
            self.hidden = self.backend.flow(self.plan, pieces)
            return
        assert state.soft_CH is not None
        place_T, slot_T = self.from_2T.unbind()
        settings = slots.process.settings
        temperature_T = temperature(settings, settings.steps - state.step).float()[slot_T]
        with launching("rows"):
            key_T2 = slots.keys().flatten(0, 1)[place_T]
        tokens_T, soft_TH = state.tokens_C.flatten()[place_T], state.soft_CH.flatten(0, 1)[place_T]
        self.hidden = self.backend.flow(self.plan, [*pieces, Piece(-1, tokens_T, causal=False, soft_SH=soft_TH)])
        self.prediction = self.backend.predict(
            self.hidden[-1], temperature_T, key_T2, self.lengths, soft=True, likely=True
        )
        basic = ("candidate_C", "argmax_C", "confidence_C", "entropy_C", "soft_CH")
        spread = {name: tensor[self.to_P] for name, tensor in self.prediction.tensors().items() if name in basic}
        with launching("rows"):
            self.advanced = slots.step(Prediction(**spread), self.backend.model)


def _filled(used: Sequence[Segment], count: int, tokens: int, causal: bool, cache: KVCache) -> list[Segment]:
    """Return these segments, empty ones up to `count`, and one for the padding."""
    last = used[-1] if used else Segment(0, cache.lengths[0], 0, causal)
    start = last.start + last.length if causal else last.start
    empty = Segment(last.row, start, 0, causal)
    padding = Segment(last.row, start, 0, causal, room=tokens - sum(each.length for each in used))
    return [*used, *[empty] * (count - len(used)), padding]


class PackedPasses:
    """The packed passes of a server, captured before they are needed."""

    def __init__(self, backend: Passes, expected: Expected) -> None:
        self.backend, self.expected = backend, expected
        self.slots = Slots(expected.batch, expected.canvas, backend.model, backend.source)
        self.made: dict[Packing, PackedPass] = {}
        self.left = expected.packings()  # not captured yet

    def find(self, work: Sequence[Work]) -> Packing | None:
        """Return the captured packing with the fewest tokens that has room for this work; otherwise one to capture.

        None: no packing has room, or the pass writes token by token.
        """
        pieces = [piece for item in work for piece in item.pieces]
        texts = [length for length, kind in pieces if kind in TEXTS]
        canvases = [length for length, kind in pieces if kind == "canvas"]
        if (
            any(kind not in (*TEXTS, "canvas") for _, kind in pieces)
            or max(texts, default=0) > self.expected.longest_text
            or max(canvases, default=0) > self.slots.length
            or len(texts) > self.expected.texts
            or len(canvases) > self.slots.count
        ):
            return None
        needed = Packing(sum(canvases), sum(texts))
        return _smallest(self.made, needed) or _smallest(self.left, needed)

    def compile(self, cache: KVCache, counts: Counts) -> None:
        """Compile the kernels of the passes that are left, several at a time.

        If the kernels of the first pass have been compiled by an earlier process, so have most others.
        """
        first, *others = self.left
        before = counts.compilations
        with compiling_only():
            self._new(first, cache).dry_run()
        if counts.compilations > before:
            with compiling_only():
                for packing in others:
                    self._new(packing, cache).dry_run()

    def capture(self, packing: Packing, cache: KVCache, capture: Callable[[Captured], None]) -> PackedPass:
        """Run a pass without work, and capture it."""
        self.left.remove(packing)  # also if it fails
        packed_pass = self._new(packing, cache)
        packed_pass.dry_run()
        capture(packed_pass)
        self.made[packing] = packed_pass
        return packed_pass

    def _new(self, packing: Packing, cache: KVCache) -> PackedPass:
        if not cache.lengths:
            cache.add_row(0)  # segments without tokens name a row, too
        return PackedPass(self.backend, packing, self.slots, self.expected, cache)


def _smallest(made: Iterable[Packing], needed: Packing) -> Packing | None:
    """Return the packing with the fewest tokens that has room, and no part that is not needed."""
    fits = [
        packing
        for packing in made
        if packing.tokens >= needed.tokens
        and packing.room >= needed.room
        and (packing.tokens > 0, packing.room > 0) == (needed.tokens > 0, needed.room > 0)
    ]
    return min(fits, default=None)

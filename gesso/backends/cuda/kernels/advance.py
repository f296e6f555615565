"""A denoising step of several canvases, as three kernels around the network.

`Process.advance` in `gesso/diffusion/canvas.py` is the specification, canvas by canvas: tokens and flags are equal to
the bit. As plain operations a step is some sixty launches, each a few microseconds however little it computes.

  1. `_prepare`  computes temperatures, keys and noise tokens of the step that a canvas is about to take.
  2. `_sample`   draws the next tokens, position by position.
  3. `_judge`    settles the start of a canvas, applies the stopping rule, and moves the history on.

All settings are data, in one table with a column per canvas. So canvases under different settings take the same step,
and a value that switches a rule off needs no operation of its own.

The sampler needs no sort. It sums, for each position, the entropies of all positions before it in ascending order: C
comparisons per position, for C = 256 fewer operations than a sort. In float64 a few hundred entropies add up without
rounding (`order_independent` in `gesso/diffusion/moment.py`), so the order of the sum does not matter.

B canvases, C positions, M earlier steps, K numbers of the settings, E end-of-text tokens.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.hash import below, position_hash
from gesso.diffusion.canvas import FREE, Process
from gesso.diffusion.prediction import Prediction
from gesso.settings import SETTINGS

LONGEST = 1024  # positions: the comparisons grow with their square
POSITIONS = 64  # per program
MEMORY = 2  # largest `stability`: that of the presets
EOS = 8  # most end-of-text tokens
NO_TOKEN = -1
_FREE = tl.constexpr(FREE)

# The settings that the kernels implement. Under any other setting, or another rule, a canvas takes the plain step.
RULES = {"sampler": ("entropy-bound",), "stopping": ("stable", "fixed")}
IMPLEMENTED = frozenset(
    {
        "canvas_length", "confidence", "entropy_bound", "eos_settles", "greed", "settle", "stability", "steps", "t_max",
        "t_min", *RULES,
    }
)  # fmt: skip


def implements(process: Process, length: int) -> bool:
    """Return whether the step of these kernels is that of a canvas of this length under these settings."""
    settings = process.settings
    others = [name for name in SETTINGS if name not in IMPLEMENTED]
    return (
        length <= LONGEST
        and all(getattr(settings, name) == SETTINGS[name].default for name in others)
        and all(getattr(settings, name) in names for name, names in RULES.items())
        and (settings.stopping == "fixed" or settings.stability <= MEMORY)
        and (not settings.eos_settles or len(process.eos) <= EOS)
    )


# The rows of the table of settings.
_T_MIN = tl.constexpr(0)
_T_RANGE = tl.constexpr(1)
_STEPS = tl.constexpr(2)
_ENTROPY_BOUND = tl.constexpr(3)
_CONFIDENCE = tl.constexpr(4)
_STOPS_BELOW = tl.constexpr(5)
_STABILITY = tl.constexpr(6)
_SETTLE = tl.constexpr(7)
_GREEDY_BELOW = tl.constexpr(8)
NUMBERS = 9


def numbers(process: Process) -> list[float]:
    """Return the column of a canvas in the table of settings."""
    settings = process.settings
    is_fixed = settings.stopping == "fixed"
    return [
        settings.t_min,
        settings.t_max - settings.t_min,
        settings.steps,
        settings.entropy_bound,
        settings.confidence,
        -1.0 if is_fixed else settings.confidence,  # no mean entropy is below -1
        0 if is_fixed else settings.stability,
        settings.settle or math.inf,
        settings.greed * process.vocab_size,
    ]


def end_tokens(process: Process) -> list[int]:
    """Return the tokens after which no position is judged, filled up to `EOS`."""
    eos = sorted(process.eos)[:EOS] if process.settings.eos_settles else []
    return eos + [NO_TOKEN] * (EOS - len(eos))


class CanvasTensors:
    """The state of several canvases, with the settings of each, in tensors that keep their addresses.

    A canvas may be shorter than C: pinned positions follow it. Their entropy is zero and no rule considers them.
    """

    def __init__(self, count: int, length: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        # In float64, as the host computes with settings.
        self.numbers_KB = torch.ones(NUMBERS, count, dtype=torch.float64, device=device)
        self.eos_BE = torch.full((count, EOS), NO_TOKEN, device=device)
        self.seed_B = zeros(count)
        self.index_B = zeros(count)
        self.step_B = zeros(count, dtype=torch.float64)
        self.tokens_BC = zeros(count, length)
        self.pin_BC = zeros(count, length)
        self.steady_BC = zeros(count, length)
        self.settled_BC = zeros(count, length, dtype=torch.bool)
        self.past_MBC = zeros(MEMORY, count, length)  # the most probable tokens of earlier steps, the newest last
        # Of the step to take:
        self.temperature_BC = torch.ones(count, length, device=device)
        self.key_BC2 = zeros(count, length, 2, dtype=torch.int32)
        self.noise_BC = zeros(count, length)


@dataclass(frozen=True)
class Advanced:
    """The canvases after a step."""

    ints_5BC: Tensor  # tokens, candidates, most probable tokens, pins, steady steps
    floats_2BC: Tensor  # confidences, entropies
    flags_2BC: Tensor  # accepted, settled
    converged_B: Tensor

    @classmethod
    def empty(cls, like_BC: Tensor) -> "Advanced":
        """Return tensors for the outputs of `advance`."""
        return cls(
            ints_5BC=torch.empty(5, *like_BC.shape, dtype=torch.long, device=like_BC.device),
            floats_2BC=torch.empty(2, *like_BC.shape, device=like_BC.device),
            flags_2BC=torch.empty(2, *like_BC.shape, dtype=torch.bool, device=like_BC.device),
            converged_B=torch.empty(len(like_BC), dtype=torch.bool, device=like_BC.device),
        )


def prepare(canvases: CanvasTensors, vocab_size: int) -> None:
    """Write the temperatures, keys and noise of the step that each canvas is about to take."""
    count, length = canvases.tokens_BC.shape
    _prepare[count, triton.cdiv(length, POSITIONS)](
        canvases.seed_B,
        canvases.index_B,
        canvases.step_B,
        canvases.numbers_KB,
        canvases.temperature_BC,
        canvases.key_BC2,
        canvases.noise_BC,
        CANVASES=count,
        LENGTH=length,
        LIMIT=vocab_size,
        POSITIONS=POSITIONS,
        num_warps=2,
    )


def advance(canvases: CanvasTensors, prediction: Prediction, out: Advanced) -> None:
    """Take the step, from a prediction [B C] for every position: write the state after it, and the outputs."""
    count, length = canvases.tokens_BC.shape
    _sample[count, triton.cdiv(length, POSITIONS)](
        prediction.candidate_C,
        prediction.argmax_C,
        prediction.confidence_C,
        prediction.entropy_C,
        canvases.pin_BC,
        canvases.noise_BC,
        canvases.numbers_KB,
        canvases.tokens_BC,
        canvases.steady_BC,
        out.ints_5BC,
        out.floats_2BC,
        out.flags_2BC,
        CANVASES=count,
        LENGTH=length,
        POSITIONS=POSITIONS,
        num_warps=4,
    )
    _judge[(count,)](
        prediction.argmax_C,
        prediction.entropy_C,
        canvases.numbers_KB,
        canvases.eos_BE,
        canvases.pin_BC,
        canvases.steady_BC,
        canvases.settled_BC,
        canvases.past_MBC,
        canvases.step_B,
        out.ints_5BC,
        out.flags_2BC,
        out.converged_B,
        CANVASES=count,
        LENGTH=length,
        MEMORY=MEMORY,
        EOS=EOS,
        ALL=triton.next_power_of_2(length),
        num_warps=4,
    )


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _number(numbers_KB, name: tl.constexpr, row, CANVASES: tl.constexpr):
    """Return a number of the settings of one canvas."""
    return tl.load(numbers_KB + name * CANVASES + row)


@triton.jit
def _prepare(
    seed_B, index_B, step_B, numbers_KB, temperature_T, key_T2, noise_T,
    CANVASES: tl.constexpr, LENGTH: tl.constexpr, LIMIT: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Compute the temperature, the keys and the noise of some positions of one canvas.

    Grid: (B, C / POSITIONS). seed, index and step are [B], step in float64. temperature and noise are [B, C], key is
    [B, C, 2]. Latency-bound.
    """
    row = tl.program_id(0)
    position = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    inside, at = position < LENGTH, row * LENGTH + position
    seed, index, step = tl.load(seed_B + row), tl.load(index_B + row), tl.load(step_B + row)
    steps = _number(numbers_KB, _STEPS, row, CANVASES)
    falls = _number(numbers_KB, _T_RANGE, row, CANVASES) * (steps - step) / steps
    temperature = _number(numbers_KB, _T_MIN, row, CANVASES) + falls
    tl.store(temperature_T + at, (temperature + tl.zeros((POSITIONS,), tl.float64)).to(tl.float32), mask=inside)
    # The streams of `HashDraws`: 2 for keys, 0 for noise. Draws belong to the number of steps after this one.
    tl.store(key_T2 + at * 2, position_hash(position, 0, seed, index, step + 1, 2), mask=inside)
    tl.store(key_T2 + at * 2 + 1, position_hash(position, 1, seed, index, step + 1, 2), mask=inside)
    tl.store(noise_T + at, below(position_hash(position, 0, seed, index, step + 1, 0), LIMIT), mask=inside)


@triton.jit
def _sample(
    candidate_T, argmax_T, confidence_T, entropy_T, pin_T, noise_T, numbers_KB,
    tokens_T, steady_T, ints_5T, floats_2T, flags_2T,
    CANVASES: tl.constexpr, LENGTH: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Draw the next tokens of some positions of one canvas, and count the steps in which they took the same one.

    Grid: (B, C / POSITIONS). Tensors [T] are [B, C]. Outputs as in `Advanced`, without pins and settled positions.
    Latency-bound.
    """
    row, T = tl.program_id(0), CANVASES * LENGTH
    position = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    inside, at = position < LENGTH, row * LENGTH + position
    pin = tl.load(pin_T + at, mask=inside, other=_FREE)
    is_free = pin == _FREE
    noise = tl.load(noise_T + at, mask=inside, other=0)
    # Pinned positions are certain.
    argmax = tl.where(is_free, tl.load(argmax_T + at, mask=inside, other=0), pin)
    confidence = tl.where(is_free, tl.load(confidence_T + at, mask=inside, other=0.0), 1.0)
    entropy = tl.where(is_free, tl.load(entropy_T + at, mask=inside, other=0.0), 0.0)
    # The noise also serves as random number. torch compares integers with a number in float32.
    is_greedy = noise.to(tl.float32) < _number(numbers_KB, _GREEDY_BELOW, row, CANVASES).to(tl.float32)
    candidate = tl.where(is_free, tl.load(candidate_T + at, mask=inside, other=0), pin)
    candidate = tl.where(is_greedy, argmax, candidate)

    sum_before = tl.zeros((POSITIONS,), tl.float64)
    for start in range(0, LENGTH, POSITIONS):
        other = start + tl.arange(0, POSITIONS)
        real = other < LENGTH
        free = tl.load(pin_T + row * LENGTH + other, mask=real, other=0) == _FREE
        low = tl.where(free, tl.load(entropy_T + row * LENGTH + other, mask=real, other=0.0), 0.0)
        lower = low[None, :] < entropy[:, None]
        equal = (low[None, :] == entropy[:, None]) & (other[None, :] < position[:, None])
        counts = (lower | equal) & real[None, :]
        sum_before += tl.sum(tl.where(counts, low.to(tl.float64)[None, :], 0.0), 1)
    # A sort puts NaN last, where no sum is within the bound.
    accepted = (sum_before <= _number(numbers_KB, _ENTROPY_BOUND, row, CANVASES)) & (entropy == entropy)
    token = tl.where(is_free, tl.where(accepted, candidate, noise), pin)

    is_sure = entropy < _number(numbers_KB, _CONFIDENCE, row, CANVASES).to(tl.float32)
    steady = tl.load(steady_T + at, mask=inside, other=0)
    is_same = (steady > 0) & (tl.load(tokens_T + at, mask=inside, other=0) == argmax)
    steady = tl.where(accepted & is_sure & (token == argmax), tl.where(is_same, steady, 0) + 1, 0)

    tl.store(tokens_T + at, token, mask=inside)
    tl.store(steady_T + at, steady, mask=inside)
    tl.store(ints_5T + at, token, mask=inside)
    tl.store(ints_5T + T + at, candidate, mask=inside)
    tl.store(ints_5T + 2 * T + at, argmax, mask=inside)
    tl.store(ints_5T + 4 * T + at, steady, mask=inside)
    tl.store(floats_2T + at, confidence, mask=inside)
    tl.store(floats_2T + T + at, entropy, mask=inside)
    tl.store(flags_2T + at, accepted, mask=inside)


@triton.jit
def _judge(
    argmax_T, entropy_T, numbers_KB, eos_BE, pin_T, steady_T, settled_T, past_MT, step_B,
    ints_5T, flags_2T, converged_B,
    CANVASES: tl.constexpr, LENGTH: tl.constexpr, MEMORY: tl.constexpr, EOS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Settle the start of one canvas, judge the canvas, and move its history on by one step.

    Grid: (B,). Tensors [T] are [B, C]; past is [M, B, C], the newest last. Latency-bound.
    """
    row, T = tl.program_id(0), CANVASES * LENGTH
    position = tl.arange(0, ALL)
    inside, at = position < LENGTH, row * LENGTH + position
    pin = tl.load(pin_T + at, mask=inside, other=0)
    is_free = pin == _FREE
    argmax = tl.where(is_free, tl.load(argmax_T + at, mask=inside, other=0), pin)
    entropy = tl.where(is_free, tl.load(entropy_T + at, mask=inside, other=0.0), 0.0)

    # Settle: pin the positions before the first one that is neither pinned nor steady.
    steady = tl.load(steady_T + at, mask=inside, other=0).to(tl.float64)
    is_open = is_free & (steady < _number(numbers_KB, _SETTLE, row, CANVASES))
    settles_now = is_free & (position < tl.min(tl.where(is_open, position, ALL), 0))
    settled = (tl.load(settled_T + at, mask=inside, other=0) != 0) | settles_now
    pin = tl.where(settles_now, argmax, pin)

    # Judge: what is not pinned by the caller, up to the first end of text.
    is_end = position < 0
    for number in range(EOS):
        is_end = is_end | (argmax == tl.load(eos_BE + row * EOS + number))
    first_end = tl.min(tl.where(is_end & inside, position, ALL), 0)
    judged = ((pin == _FREE) | settled) & (position <= first_end) & inside
    count = tl.sum(judged.to(tl.int32), 0)
    stability = _number(numbers_KB, _STABILITY, row, CANVASES)
    is_stable = count >= 0
    for m in range(MEMORY):
        past = tl.load(past_MT + m * T + at, mask=inside, other=0)
        changed = tl.sum((judged & (past != argmax)).to(tl.int32), 0)
        is_stable = is_stable & ((changed == 0) | (stability < MEMORY - m))
        if m > 0:
            tl.store(past_MT + (m - 1) * T + at, past, mask=inside)
    tl.store(past_MT + (MEMORY - 1) * T + at, argmax, mask=inside)
    mean = tl.sum((entropy * judged.to(tl.float32)).to(tl.float64), 0) / tl.maximum(count, 1)
    is_certain = mean < _number(numbers_KB, _STOPS_BELOW, row, CANVASES)

    tl.store(pin_T + at, pin, mask=inside)
    tl.store(settled_T + at, settled, mask=inside)
    tl.store(ints_5T + 3 * T + at, pin, mask=inside)
    tl.store(flags_2T + T + at, settled, mask=inside)
    tl.store(converged_B + row, (count == 0) | (is_stable & is_certain))
    tl.store(step_B + row, tl.load(step_B + row) + 1)

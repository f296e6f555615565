"""A denoising step with the default sampler, as two kernels around the network.

`Process.evolve` and `Process.converged` in `gesso/diffusion/canvas.py` are the specification: tokens and flags are
equal to the bit. As plain operations a step is some sixty launches, each a few microseconds however little it computes.

  1. `_prepare`  computes temperatures, keys and noise tokens of the step that a canvas is about to take.
  2. `_advance`  samples, applies the stopping rule, and moves the canvas and its history on.

The sampler needs no sort. It sums, for each position, the entropies of all positions before it in ascending order: C
comparisons per position, for C = 256 fewer operations than a sort. In float64 a few hundred entropies add up without
rounding (`order_independent` in `gesso/diffusion/moment.py`), so the order of the sum does not matter.

B canvases, C positions, M earlier steps.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.hash import below, position_hash
from gesso.diffusion.canvas import FREE
from gesso.diffusion.prediction import Prediction
from gesso.settings import Diffusion

LONGEST = 1024  # positions: the comparisons grow with their square
POSITIONS = 64  # per program
_FREE = tl.constexpr(FREE)


def advances(settings: Diffusion) -> bool:
    """Return whether these kernels implement the settings: the default sampler, and the default or no stopping rule."""
    plain = settings.greed == 0 and settings.settle == 0 and not settings.eos_settles and not settings.by_token
    return plain and settings.sampler == "entropy-bound" and settings.stopping in ("stable", "fixed")


class Outputs(NamedTuple):
    """The outputs of a step, in tensors that keep their addresses."""

    ints_5BC: Tensor  # tokens, candidate, argmax, pin, and zeros
    floats_2BC: Tensor  # confidence, entropy
    flags_2BC: Tensor  # accepted, and zeros
    converged_B: Tensor


class StepKernels:
    """The kernels, their settings as tensors, and the tensors they write.

    Settings are read from memory. As arguments they would be rounded to float32, as constants compiled anew.
    """

    def __init__(self, settings: Diffusion, vocab_size: int, tokens_BC: Tensor) -> None:
        device = tokens_BC.device
        self.vocab_size, self.is_stable = vocab_size, settings.stopping == "stable"
        schedule = [settings.t_min, settings.t_max - settings.t_min, settings.steps]
        self.schedule_3 = torch.tensor(schedule, dtype=torch.float64, device=device)
        self.bounds_2 = torch.tensor([settings.entropy_bound, settings.confidence], dtype=torch.float64, device=device)
        self.noise_BC = torch.zeros_like(tokens_BC)
        self.out = Outputs(
            torch.zeros(5, *tokens_BC.shape, dtype=torch.long, device=device),
            torch.zeros(2, *tokens_BC.shape, device=device),
            torch.zeros(2, *tokens_BC.shape, dtype=torch.bool, device=device),
            torch.zeros(len(tokens_BC), dtype=torch.bool, device=device),
        )

    def prepare(self, seed_B: Tensor, index_B: Tensor, step_B: Tensor, temperature_T: Tensor, key_T2: Tensor) -> None:
        """Write the temperatures, keys and noise of the step."""
        canvases, length = self.noise_BC.shape
        _prepare[canvases, triton.cdiv(length, POSITIONS)](
            *(seed_B, index_B, step_B, self.schedule_3, temperature_T, key_T2, self.noise_BC),
            LENGTH=length,
            LIMIT=self.vocab_size,
            POSITIONS=POSITIONS,
            num_warps=2,
        )

    def advance(
        self, prediction: Prediction, pin_BC: Tensor, tokens_BC: Tensor, accepted_BC: Tensor, step_B: Tensor,
        past_MBC: Tensor | None,
    ) -> Outputs:  # fmt: skip
        """Take the step: write the next tokens, the accepted positions, the number of steps and the history."""
        canvases, length = tokens_BC.shape
        _advance[canvases, triton.cdiv(length, POSITIONS)](
            *(prediction.candidate_C, prediction.argmax_C, prediction.confidence_C, prediction.entropy_C),
            *(pin_BC, self.noise_BC, self.bounds_2, tokens_BC, accepted_BC, step_B, past_MBC, *self.out),
            CANVASES=canvases,
            LENGTH=length,
            MEMORY=0 if past_MBC is None else len(past_MBC),
            STABLE=self.is_stable,
            POSITIONS=POSITIONS,
            ALL=triton.next_power_of_2(length),
            num_warps=4,
        )
        return self.out


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _prepare(
    seed_B, index_B, step_B, schedule_3, temperature_T, key_T2, noise_T,
    LENGTH: tl.constexpr, LIMIT: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Compute the temperature, the keys and the noise of some positions of one canvas.

    Grid: (B, C / POSITIONS). seed, index and step are [B], step in float64. schedule: the lowest temperature, its range
    and the number of steps. temperature and noise are [B, C], key is [B, C, 2]. Latency-bound.
    """
    row = tl.program_id(0)
    position = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    inside, at = position < LENGTH, row * LENGTH + position
    seed, index, step = tl.load(seed_B + row), tl.load(index_B + row), tl.load(step_B + row)
    steps = tl.load(schedule_3 + 2)
    temperature = tl.load(schedule_3) + tl.load(schedule_3 + 1) * (steps - step) / steps
    tl.store(temperature_T + at, (temperature + tl.zeros((POSITIONS,), tl.float64)).to(tl.float32), mask=inside)
    # The streams of `HashDraws`: 2 for keys, 0 for noise. Draws belong to the number of steps after this one.
    tl.store(key_T2 + at * 2, position_hash(position, 0, seed, index, step + 1, 2), mask=inside)
    tl.store(key_T2 + at * 2 + 1, position_hash(position, 1, seed, index, step + 1, 2), mask=inside)
    tl.store(noise_T + at, below(position_hash(position, 0, seed, index, step + 1, 0), LIMIT), mask=inside)


@triton.jit
def _advance(
    candidate_T, argmax_T, confidence_T, entropy_T, pin_T, noise_T, bounds_2,
    tokens_T, accepted_T, step_B, past_MT, ints_5T, floats_2T, flags_2T, converged_B,
    CANVASES: tl.constexpr, LENGTH: tl.constexpr, MEMORY: tl.constexpr, STABLE: tl.constexpr,
    POSITIONS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Advance some positions of one canvas; the first program of a canvas also judges it as a whole.

    Grid: (B, C / POSITIONS). Tensors [T] are [B, C]; past is [M, B, C], the newest last, or None. bounds: of the
    entropies that are accepted, and of the mean entropy below which a canvas is done. Outputs as in `Outputs`.
    Latency-bound.
    """
    row, T = tl.program_id(0), CANVASES * LENGTH
    position = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    inside, at = position < LENGTH, row * LENGTH + position
    pin = tl.load(pin_T + at, mask=inside, other=_FREE)
    is_free = pin == _FREE
    # Pinned positions are certain.
    candidate = tl.where(is_free, tl.load(candidate_T + at, mask=inside, other=0), pin)
    argmax = tl.where(is_free, tl.load(argmax_T + at, mask=inside, other=0), pin)
    confidence = tl.where(is_free, tl.load(confidence_T + at, mask=inside, other=0.0), 1.0)
    entropy = tl.where(is_free, tl.load(entropy_T + at, mask=inside, other=0.0), 0.0)

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
    accepted = (sum_before <= tl.load(bounds_2)) & (entropy == entropy)
    token = tl.where(accepted, candidate, tl.load(noise_T + at, mask=inside, other=0))
    token = tl.where(is_free, token, pin)

    tl.store(tokens_T + at, token, mask=inside)
    tl.store(accepted_T + at, accepted, mask=inside)
    tl.store(ints_5T + at, token, mask=inside)
    tl.store(ints_5T + T + at, candidate, mask=inside)
    tl.store(ints_5T + 2 * T + at, argmax, mask=inside)
    tl.store(ints_5T + 3 * T + at, pin, mask=inside)
    tl.store(floats_2T + at, confidence, mask=inside)
    tl.store(floats_2T + T + at, entropy, mask=inside)
    tl.store(flags_2T + at, accepted, mask=inside)

    if tl.program_id(1) == 0:
        _judge(argmax_T, entropy_T, pin_T, bounds_2, past_MT, converged_B, row, CANVASES, LENGTH, MEMORY, STABLE, ALL)
        tl.store(step_B + row, tl.load(step_B + row) + 1)


@triton.jit
def _judge(
    argmax_T, entropy_T, pin_T, bounds_2, past_MT, converged_B, row,
    CANVASES: tl.constexpr, LENGTH: tl.constexpr, MEMORY: tl.constexpr, STABLE: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Apply the stopping rule to one canvas, and move its history on by one step."""
    position = tl.arange(0, ALL)
    inside, at = position < LENGTH, row * LENGTH + position
    pin = tl.load(pin_T + at, mask=inside, other=0)
    judged = pin == _FREE
    argmax = tl.where(judged, tl.load(argmax_T + at, mask=inside, other=0), pin)
    count = tl.sum(judged.to(tl.int32), 0)
    converged = count == 0
    if STABLE:
        same = count >= 0
        if MEMORY:
            for m in range(MEMORY):
                past = tl.load(past_MT + m * (CANVASES * LENGTH) + at, mask=inside, other=0)
                same = same & (tl.sum((judged & (past != argmax)).to(tl.int32), 0) == 0)
                if m > 0:
                    tl.store(past_MT + (m - 1) * (CANVASES * LENGTH) + at, past, mask=inside)
            tl.store(past_MT + (MEMORY - 1) * (CANVASES * LENGTH) + at, argmax, mask=inside)
        entropy = tl.where(judged, tl.load(entropy_T + at, mask=inside, other=0.0), 0.0)
        mean = tl.sum(entropy.to(tl.float64), 0) / tl.maximum(count, 1)
        converged = converged | (same & (mean < tl.load(bounds_2 + 1)))
    tl.store(converged_B + row, converged)

"""Choose precision, context, batch and prefill by the available memory, where the settings leave them open.

Rows of the KV cache grow with their texts and keep their size. The worst case is therefore `max_batch` texts of
`max_length` tokens beside the weights. That case must fit, so the cache of a running server never exceeds memory.
"""

import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gesso.checkpoint import huggingface, random_weights
from gesso.errors import InputError
from gesso.info.memory import precision_of, sequence_bytes, short, weight_bytes
from gesso.info.workspace import workspace_bytes
from gesso.model.config import Config
from gesso.serve.settings import EngineSettings

BATCH = 8  # preferred to a longer context
BATCH_GPU = 32  # limit where memory allows it; on a CPU a larger batch gives no more tokens per second
CONTEXT = 8192  # preferred to a larger batch and to a wider precision
PREFILL_GPU, PREFILL_CPU = 2048, 256  # on a CPU, one prefill chunk takes as long as a denoising step
MOST = 1024  # largest batch considered
PRECISIONS = ("none", "fp8", "int4")  # widest first


@dataclass(frozen=True)
class Memory:
    """Memory in bytes of the device that the model runs on."""

    total: int
    free: int
    device: str  # cpu or cuda

    def budget(self, share: float) -> int:
        return min(round(share * self.total), self.free)


@dataclass(frozen=True)
class Choice:
    settings: EngineSettings  # complete
    why: str
    fixed_bytes: int  # weights and workspace: all memory but the KV cache
    budget_bytes: int  # limit for weights, workspace and KV cache


def choose(settings: EngineSettings, memory: Memory, value_bytes: int) -> Choice:
    """Complete the settings, or raise an InputError with the figures if the model cannot fit.

    `value_bytes` is the size of a number in the dtype of the computation.
    """
    _, config = random_weights.locate(settings.model)
    prefill = settings.prefill or (PREFILL_GPU if memory.device == "cuda" else PREFILL_CPU)
    fit = MemoryFit(config, memory.budget(settings.memory), value_bytes, prefill)
    allowed = [settings.quantize] if settings.quantize else ["none"] if config.quantization else list(PRECISIONS)
    wanted = min(settings.max_length or CONTEXT, config.max_position_embeddings)
    batch = settings.max_batch or 1
    fits = [name for name in allowed if fit.sequences(name, wanted) >= batch]
    if not fits and settings.max_length is None:  # accept a context shorter than CONTEXT, in the narrowest precision
        fits = [name for name in allowed[-1:] if fit.context(name, batch) >= config.canvas_length]
    if not fits:
        raise InputError(_rejection(fit, allowed[-1], wanted, batch, settings))
    quantize = fits[0]
    context = settings.max_length or max(
        fit.context(quantize, settings.max_batch or BATCH),
        min(wanted, fit.context(quantize, batch)),  # a smaller batch before a context shorter than CONTEXT
    )
    context = min(context, config.max_position_embeddings)
    most = BATCH_GPU if memory.device == "cuda" else BATCH
    chosen = replace(
        settings,
        quantize=None if quantize == "none" else quantize,
        max_length=context,
        max_batch=settings.max_batch or min(most, fit.sequences(quantize, context)),
        prefill=prefill,
    )
    assert chosen.max_batch is not None
    fixed = fit.weights(quantize) + fit.workspace(chosen.max_batch)
    return Choice(chosen, _reason(fit, memory, settings, chosen), fixed, fit.budget)


class MemoryFit:
    """Sizes of weights, workspace and KV cache, and the batches and contexts that fit a budget of bytes."""

    def __init__(self, config: Config, budget: int, value_bytes: int, prefill: int) -> None:
        self.config, self.budget, self.value_bytes, self.prefill = config, budget, value_bytes, prefill
        model = huggingface.empty_model(replace(config, quantization=None))
        self._shapes = list(model.named_parameters())

    def weights(self, quantize: str) -> int:
        packed = self.config.quantization or quantize
        precision = "bf16" if packed == "none" else precision_of(packed)
        return sum(weight_bytes(name, p, precision, self.value_bytes) for name, p in self._shapes)

    def workspace(self, batch: int) -> int:
        return workspace_bytes(self.config, batch, self.prefill, self.config.canvas_length, self.value_bytes)

    def sequence(self, context: int) -> int:
        return sequence_bytes(self.config, context, self.value_bytes)

    def sequences(self, quantize: str, context: int) -> int:
        """Return the largest batch of sequences of this length that fits beside the weights."""
        free, size = self.budget - self.weights(quantize), self.sequence(context)
        return bisect_right(range(1, MOST + 1), free, key=lambda batch: self.workspace(batch) + batch * size)

    def context(self, quantize: str, batch: int) -> int:
        """Return the longest context of which `batch` sequences fit beside the weights."""
        free = self.budget - self.weights(quantize) - self.workspace(batch)
        lengths = range(1, self.config.max_position_embeddings + 1)
        return bisect_right(lengths, free // batch, key=self.sequence)


def _reason(fit: MemoryFit, memory: Memory, given: EngineSettings, chosen: EngineSettings) -> str:
    precision = chosen.quantize or "none"
    assert chosen.max_length is not None and chosen.max_batch is not None

    def source(value: object) -> str:
        return "as requested" if value else "largest that fits"

    longest = fit.config.max_position_embeddings
    context = "the checkpoint's maximum" if chosen.max_length == longest else source(given.max_length)
    quantized = f", quantized to {chosen.quantize} ({'as requested' if given.quantize else 'widest that fits'})"
    return (
        f"{gb(memory.free)} of {gb(memory.total)} are free on the {memory.device}, {gb(fit.budget)} may be used; "
        f"weights {gb(fit.weights(precision))}{quantized if chosen.quantize else ''}, "
        f"workspace {gb(fit.workspace(chosen.max_batch))}; "
        f"context {chosen.max_length} ({context}), at most {gb(fit.sequence(chosen.max_length))} per text; "
        f"batch {chosen.max_batch} ({source(given.max_batch)}); "
        f"prefill {chosen.prefill} tokens per step ({'as requested' if given.prefill else 'default of the device'})"
    )


def _rejection(fit: MemoryFit, quantize: str, context: int, batch: int, settings: EngineSettings) -> str:
    quantized = "" if quantize == "none" else f" quantized to {quantize}"
    needed = fit.workspace(batch) + fit.weights(quantize) + batch * fit.sequence(context)
    texts = f"{batch} texts of {context} tokens" if batch > 1 else f"a text of {context} tokens"
    possible = fit.context(quantize, batch)
    advice = (
        f"a context of {possible} would fit (--max-length)"
        if possible
        else "try a smaller --max-batch, a narrower --quantize, a larger --memory or another device"
    )
    return (
        f"the model does not fit: weights{quantized} ({gb(fit.weights(quantize))}), workspace "
        f"({gb(fit.workspace(batch))}) and {texts} ({gb(batch * fit.sequence(context))}) need {gb(needed)}, and "
        f"{gb(fit.budget)} may be used (--memory {settings.memory:g}); {advice}"
    )


def gb(size: int) -> str:
    return short(size, (" GB", " MB", " kB", " B"))


def memory_of(device: torch.device) -> Memory:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(total, free, "cuda")
    return Memory(*host_memory(), "cpu")


def host_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Return the total and free memory of this machine, or of the container if that is smaller."""
    try:
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        total, free = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError):  # not Linux
        total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return total, free
    if limit == "max":
        return total, free
    return min(total, int(limit)), min(free, max(0, int(limit) - int(used)))

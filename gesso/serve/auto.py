"""What a server takes on when it is not told: precision, context, batch and prefill, by the memory there is.

Rows of the cache grow as texts do, and keep what they have grown to. So the worst that can come is `max_batch` texts of
`max_length` tokens beside the weights, and that has to fit: the cache of a server that starts never outgrows memory.
"""

import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gesso.checkpoint import huggingface as checkpoint
from gesso.checkpoint import random_weights as untrained
from gesso.errors import InputError
from gesso.info.memory import precision_of, sequence_bytes, short, weight_bytes
from gesso.info.workspace import workspace_bytes
from gesso.model.config import Config
from gesso.serve.settings import EngineSettings

BATCH = 8  # requests at once that are worth a shorter context
BATCH_GPU = 32  # and as many as this where there is room: on a CPU more at once is not more a second
CONTEXT = 8192  # tokens that are worth a smaller batch, and a narrower precision
PREFILL_GPU, PREFILL_CPU = 2048, 256  # on a CPU one piece takes as long as a step of those who run
MOST = 1024  # requests at once that are considered
PRECISIONS = ("none", "fp8", "int4")  # widest first


@dataclass(frozen=True)
class Memory:
    """Of the device the model runs on: all of it, and what nobody uses now."""

    total: int
    free: int
    device: str  # cpu or cuda

    def budget(self, share: float) -> int:
        return min(round(share * self.total), self.free)


@dataclass(frozen=True)
class Choice:
    settings: EngineSettings  # with nothing left open
    why: str
    fixed_bytes: int  # weights and workspace: all memory but the KV cache
    budget_bytes: int  # everything must fit in


def choose(settings: EngineSettings, memory: Memory, value_bytes: int) -> Choice:
    """Fill in what the settings leave open; InputError, with the figures, for what cannot fit.

    `value_bytes` are those of a number in the dtype that products are made in.
    """
    _, config = untrained.locate(settings.model)
    prefill = settings.prefill or (PREFILL_GPU if memory.device == "cuda" else PREFILL_CPU)
    room = Room(config, memory.budget(settings.memory), value_bytes, prefill)
    narrower = [settings.quantize] if settings.quantize else ["none"] if config.quantization else list(PRECISIONS)
    wanted = min(settings.max_length or CONTEXT, config.max_position_embeddings)
    batch = settings.max_batch or 1
    fits = [name for name in narrower if room.sequences(name, wanted) >= batch]
    if not fits and settings.max_length is None:  # a context below the one that is worth a narrower precision
        fits = [name for name in narrower[-1:] if room.context(name, batch) >= config.canvas_length]
    if not fits:
        raise InputError(_refusal(room, narrower[-1], wanted, batch, settings))
    quantize = fits[0]
    context = settings.max_length or max(
        room.context(quantize, settings.max_batch or BATCH),
        min(wanted, room.context(quantize, batch)),  # not below this as long as so much fits, even once
    )
    context = min(context, config.max_position_embeddings)
    most = BATCH_GPU if memory.device == "cuda" else BATCH
    chosen = replace(
        settings,
        quantize=None if quantize == "none" else quantize,
        max_length=context,
        max_batch=settings.max_batch or min(most, room.sequences(quantize, context)),
        prefill=prefill,
    )
    assert chosen.max_batch is not None
    fixed = room.weights(quantize) + room.workspace(chosen.max_batch)
    return Choice(chosen, _reason(room, memory, settings, chosen), fixed, room.budget)


class Room:
    """What fits in a budget of bytes: weights, the workspace of a batch, and the cache of each sequence in it."""

    def __init__(self, config: Config, budget: int, value_bytes: int, prefill: int) -> None:
        self.config, self.budget, self.value_bytes, self.prefill = config, budget, value_bytes, prefill
        model = checkpoint.empty_model(replace(config, quantization=None))
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


def _reason(room: Room, memory: Memory, asked: EngineSettings, chosen: EngineSettings) -> str:
    precision = chosen.quantize or "none"
    assert chosen.max_length is not None and chosen.max_batch is not None

    def by(given: object) -> str:
        return "as told" if given else "by what fits"

    longest = room.config.max_position_embeddings
    context = "all the checkpoint has" if chosen.max_length == longest else by(asked.max_length)
    packed = "" if chosen.quantize is None else f", packed to {chosen.quantize} ({by(asked.quantize)})"
    return (
        f"{gb(memory.free)} of {gb(memory.total)} are free on the {memory.device} and {gb(room.budget)} may be used; "
        f"weights take {gb(room.weights(precision))}{packed}, work {gb(room.workspace(chosen.max_batch))}; "
        f"context {chosen.max_length} ({context}), {gb(room.sequence(chosen.max_length))} a text at most; "
        f"{chosen.max_batch} requests at once ({by(asked.max_batch)}); "
        f"{chosen.prefill} prompt tokens between two steps ({'as told' if asked.prefill else 'by the device'})"
    )


def _refusal(room: Room, quantize: str, context: int, batch: int, settings: EngineSettings) -> str:
    packed = "" if quantize == "none" else f" packed to {quantize}"
    needed = room.workspace(batch) + room.weights(quantize) + batch * room.sequence(context)
    texts = f"{batch} texts of {context} tokens" if batch > 1 else f"a text of {context} tokens"
    possible = room.context(quantize, batch)
    advice = (
        f"a context of {possible} would fit (--max-length)"
        if possible
        else "a smaller --max-batch, a narrower --quantize, a larger --memory or another device may do"
    )
    return (
        f"the model does not fit: weights{packed} ({gb(room.weights(quantize))}), work ({gb(room.workspace(batch))}) "
        f"and {texts} ({gb(batch * room.sequence(context))}) are {gb(needed)}, and {gb(room.budget)} may be used "
        f"(--memory {settings.memory:g}); {advice}"
    )


def gb(size: int) -> str:
    return short(size, (" GB", " MB", " kB", " B"))


# --- what there is --------------------------------------------------------------------------------------------------


def memory_of(device: torch.device) -> Memory:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(total, free, "cuda")
    return Memory(*host_memory(), "cpu")


def host_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """All and free memory of this machine, or of the container that it is for this process."""
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

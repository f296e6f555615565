"""Precisions, batches and contexts that fit the memory of a device, and the report if none does."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.quantize.formats import check_known
from gesso.errors import DoesNotFitError
from gesso.info.device import DeviceMemory
from gesso.info.memory import gigabytes, precision_of, sequence_bytes, weight_bytes
from gesso.info.workspace import workspace_bytes
from gesso.model.config import Config

CONTEXT = 8192  # tokens; preferred to a larger batch and to a wider precision
PREFILL_GPU, PREFILL_CPU = 2048, 256  # on a CPU, one prefill chunk takes as long as a denoising step
PRECISIONS = ("none", "fp8", "int4")  # widest first
MOST = 1024  # largest batch considered


class Budget:
    """Sizes of weights, workspace and KV cache, and the batches and contexts that fit a number of bytes.

    `value_bytes` is the size of a number in the dtype of the computation.
    """

    def __init__(self, config: Config, size: int, value_bytes: int, prefill: int) -> None:
        self.config, self.size, self.value_bytes, self.prefill = config, size, value_bytes, prefill
        model = empty_model(replace(config, quantization=None))
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
        free, size = self.size - self.weights(quantize), self.sequence(context)
        return bisect_right(range(1, MOST + 1), free, key=lambda batch: self.workspace(batch) + batch * size)

    def context(self, quantize: str, batch: int) -> int:
        """Return the longest context of which `batch` sequences fit beside the weights."""
        return self.longest((self.size - self.weights(quantize) - self.workspace(batch)) // batch)

    def longest(self, size: int) -> int:
        """Return the longest context of which one sequence fits `size` bytes."""
        return bisect_right(range(1, self.config.max_position_embeddings + 1), size, key=self.sequence)

    def precisions(self) -> Sequence[str]:
        """Return the precisions that the checkpoint can be loaded in, widest first."""
        return PRECISIONS[:1] if self.config.quantization else PRECISIONS

    def widest(self, allowed: Sequence[str], context: int, batch: int, *, shorter: bool) -> str | None:
        """Return the first precision in which `batch` texts of `context` tokens fit.

        If none does and the texts may be shorter, return the narrowest one if a canvas per text fits.
        """
        fits = [name for name in allowed if self.sequences(name, context) >= batch]
        if not fits and shorter:
            fits = [name for name in allowed[-1:] if self.context(name, batch) >= self.config.canvas_length]
        return fits[0] if fits else None

    def needed(self, quantize: str, context: int, batch: int, share: float) -> str:
        """Return the memory that a batch needs, part by part, and the memory that may be used."""
        parts = self.weights(quantize), self.workspace(batch), batch * self.sequence(context)
        quantized = "" if quantize == "none" else f" quantized to {quantize}"
        texts = f"{batch} texts of {context} tokens" if batch > 1 else f"a text of {context} tokens"
        return (
            f"weights{quantized} ({gigabytes(parts[0])}), workspace ({gigabytes(parts[1])}) and {texts} "
            f"({gigabytes(parts[2])}) need {gigabytes(sum(parts))}, and {gigabytes(self.size)} may be used "
            f"(--memory {share:g})"
        )


def budget_of(config: Config, memory: DeviceMemory, share: float, value_bytes: int, prefill: int | None) -> Budget:
    usual = PREFILL_GPU if memory.device == "cuda" else PREFILL_CPU
    return Budget(config, memory.budget(share), value_bytes, prefill or usual)


def choose_precision(
    config: Config,
    memory: DeviceMemory,
    share: float,
    value_bytes: int,
    quantize: str | None,
    *,
    max_batch: int,
    max_length: int | None,
) -> str | None:
    """Return the quantization to load a model with, or raise DoesNotFitError before anything is loaded.

    "auto" is the widest precision in which `max_batch` texts fit, or else a single text. None is no quantization. A
    given quantization is returned if its weights fit; texts and workspace may be smaller than their upper bounds.
    """
    if quantize not in (None, "auto"):
        check_known(quantize)
    budget = budget_of(config, memory, share, value_bytes, None)
    if quantize != "auto":
        if budget.weights(quantize or "none") > budget.size:
            raise _does_not_fit(budget, quantize or "none", share)
        return quantize
    context = min(max_length or CONTEXT, config.max_position_embeddings)
    for batch in (max_batch, 1):
        if found := budget.widest(budget.precisions(), context, batch, shorter=batch == 1):
            return None if found == "none" else found
    raise _does_not_fit(budget, budget.precisions()[-1], share)


def shortage(budget: Budget, quantize: str, share: float) -> tuple[str, str | None]:
    """Return the memory that one text needs, in words, and a narrower quantization in which it fits."""
    context = min(CONTEXT, budget.config.max_position_embeddings)
    narrower = [name for name in budget.precisions() if budget.weights(name) < budget.weights(quantize)]
    fits = budget.widest(narrower, context, 1, shorter=True) if narrower else None
    return budget.needed(quantize, context, 1, share), fits


def _does_not_fit(budget: Budget, quantize: str, share: float) -> DoesNotFitError:
    needed, fits = shortage(budget, quantize, share)
    return DoesNotFitError(f"the model does not fit: {needed}", fits)

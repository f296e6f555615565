"""Precisions, batches and contexts that fit the memory of a device, and the report if none does.

If no precision fits, the experts of some layers can stay in host memory and stream to the GPU in every pass. A pass
copies all of them, so as few layers as possible stream.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gesso.checkpoint.quantize.formats import check_known
from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.streamed import SLOTS
from gesso.checkpoint.vision import has_vision, vision_bytes
from gesso.errors import DoesNotFitError, InputError
from gesso.memory.device import DeviceMemory, shown_memory
from gesso.memory.sequences import sequence_bytes
from gesso.memory.units import gigabytes
from gesso.memory.weights import NOT_PACKED, WeightSize, config_sizes, source_sizes, token_bytes, unpacks
from gesso.memory.workspace import SEEN_BYTES, workspace_bytes
from gesso.model.config import Config
from gesso.model.quantization_config import MIXED

CONTEXT = 8192  # tokens; preferred to a larger batch and to a wider precision
PREFILL_GPU, PREFILL_CPU = 2048, 256  # on a CPU, one prefill chunk takes as long as a denoising step
PRECISIONS = (NOT_PACKED, "fp8", "int4")  # widest first
PRECISIONS_CPU = (NOT_PACKED, "fp8", MIXED, "int4")
MOST = 4096  # largest batch considered
HOST_RESERVE = 2 * 10**9  # bytes of free host memory that stay free: for this process, and the file that is read


@dataclass(frozen=True)
class Placement:
    """A precision, and the layers whose experts stream from host memory."""

    quantize: str
    layers: tuple[int, ...] = ()
    host_bytes: int = 0  # of pinned host memory; a pass copies all of them


def spread(count: int, layers: int) -> tuple[int, ...]:
    """Return `count` of the layers, evenly spaced and as late as possible: a copy overlaps with the layers before."""
    return tuple((place + 1) * layers // count - 1 for place in range(count))


class Budget:
    """Sizes of weights, workspace and KV cache, and the batches and contexts that fit a number of bytes.

    `value_bytes` is the size of a number in the dtype of the computation. `host` is the host memory for streamed
    experts; 0 where they cannot stream, as on a CPU. `sizes` are those of the weights of a checkpoint whose formats are
    another tool's. With `on_cpu`, quantizations apply to as many matrices as on a CPU. `vision` are
    the bytes of the vision tower, which is never packed and stays in host memory if experts stream.
    """

    def __init__(
        self,
        config: Config,
        size: int,
        value_bytes: int,
        prefill: int,
        host: int = 0,
        sizes: Mapping[str, WeightSize] | None = None,
        *,
        on_cpu: bool = False,
        vision: int = 0,
    ) -> None:
        self.config = config
        self.size = size
        self.value_bytes = value_bytes
        self.prefill = prefill
        self.host = host
        self.sizes = sizes
        self.on_cpu = on_cpu
        self.vision = vision
        self._streamed: dict[str, Counter[str]] = {}

    def weights(self, quantize: str, streamed: Sequence[int] = ()) -> int:
        """Return the bytes of the weights on the device, with the slots that streamed layers share."""
        weights = sum(size.nbytes for size in self.sizes_of(quantize).values())
        if not streamed:
            return self.vision + weights
        copied = [self.streamed(quantize, [layer]) for layer in streamed]
        return weights - sum(copied) + SLOTS * max(copied)

    def streamed(self, quantize: str, layers: Sequence[int]) -> int:
        """Return the bytes of the experts of these layers that are in host memory if the layers stream."""
        if quantize not in self._streamed:  # a search for the layers to stream asks hundreds of times
            self._streamed[quantize] = _streamed_bytes(self.sizes_of(quantize))
        return sum(self._streamed[quantize][str(layer)] for layer in layers)

    def sizes_of(self, quantize: str) -> Mapping[str, WeightSize]:
        """Return the size of every weight by its name in the model."""
        if self.sizes is not None:
            return self.sizes
        return config_sizes(self.config, quantize, self.value_bytes, on_cpu=self.on_cpu)

    def workspace(self, batch: int) -> int:
        sizes, images = (self.prefill, self.config.canvas_length, self.value_bytes), self.vision > 0
        kept = SEEN_BYTES if images and self.on_cpu else 0
        return workspace_bytes(self.config, batch, *sizes, images=images) + kept

    def token(self, quantize: str) -> int:
        """Return the bytes that writing one token by itself reads."""
        sizes = {name: size.nbytes for name, size in self.sizes_of(quantize).items()}
        return token_bytes(sizes, self.config)

    def total(self, quantize: str, context: int, batch: int) -> int:
        """Return the bytes of the weights, and of `batch` sequences of this length with their workspace."""
        return self.weights(quantize) + self.workspace(batch) + batch * self.sequence(context)

    def sequence(self, context: int) -> int:
        return sequence_bytes(self.config, context, self.value_bytes)

    def sequences(self, quantize: str, context: int, streamed: Sequence[int] = ()) -> int:
        """Return the largest batch of sequences of this length that fits beside the weights."""
        free, size = self.size - self.weights(quantize, streamed), self.sequence(context)
        return bisect_right(range(1, MOST + 1), free, key=lambda batch: self.workspace(batch) + batch * size)

    def context(self, quantize: str, batch: int, streamed: Sequence[int] = ()) -> int:
        """Return the longest context of which `batch` sequences fit beside the weights."""
        return self.longest((self.size - self.weights(quantize, streamed) - self.workspace(batch)) // batch)

    def longest(self, size: int) -> int:
        """Return the longest context of which one sequence fits `size` bytes."""
        return bisect_right(range(1, self.config.max_position_embeddings + 1), size, key=self.sequence)

    def precisions(self) -> Sequence[str]:
        """Return the precisions that the checkpoint can be loaded in, widest first."""
        if self.config.quantization:
            return PRECISIONS[:1]
        return [name for name in (PRECISIONS_CPU if self.on_cpu else PRECISIONS) if self._is_storable(name)]

    def _is_storable(self, quantize: str) -> bool:
        """Return whether every matrix has a size that its format can store: rows of whole groups."""
        try:
            self.sizes_of(quantize)
        except InputError:
            return False
        return True

    def widest(self, allowed: Sequence[str], context: int, batch: int, *, shorter: bool) -> str | None:
        """Return the first precision in which `batch` texts of `context` tokens fit.

        If none does and the texts may be shorter, return the narrowest one if a canvas per text fits.
        """
        fits = [name for name in allowed if self.sequences(name, context) >= batch]
        if not fits and shorter:
            fits = [name for name in allowed[-1:] if self.context(name, batch) >= self.config.canvas_length]
        return fits[0] if fits else None

    def stream(self, quantize: str, context: int, batch: int) -> Placement | None:
        """Return the placement with the fewest streamed layers in which `batch` texts of `context` tokens fit.

        None if there is no such placement, or too little host memory for it.
        """
        layers = self._to_stream(quantize, context, batch)
        size = self.streamed(quantize, layers)
        return Placement(quantize, layers, size) if layers and size <= self.host else None

    def _to_stream(self, quantize: str, context: int, batch: int) -> tuple[int, ...]:
        """Return the fewest layers that have to stream, or none if that is impossible or not enough."""
        if not self.host or not self.config.tie_word_embeddings:
            return ()
        free = self.size - self.workspace(batch) - batch * self.sequence(context)
        total = len(self.config.layers)
        choices = (spread(count, total) for count in range(SLOTS + 1, total + 1))  # fewer save no memory
        return next((layers for layers in choices if self.weights(quantize, layers) <= free), ())

    def place(self, allowed: Sequence[str], context: int, batch: int, *, shorter: bool) -> Placement | None:
        """Return the widest precision in which `batch` texts of `context` tokens fit, or else the narrowest one with
        streamed experts.

        If neither fits and the texts may be shorter, the same for texts of at least a canvas.
        """
        narrowest = allowed[-1]
        if precision := self.widest(allowed, context, batch, shorter=False):
            return Placement(precision)
        if streaming := self.stream(narrowest, context, batch):
            return streaming
        if not shorter:
            return None
        if precision := self.widest(allowed, context, batch, shorter=True):
            return Placement(precision)
        return self.stream(narrowest, self.config.canvas_length, batch)

    def needed(self, placement: Placement, context: int, batch: int, memory: float | str) -> str:
        """Return the memory that a batch needs, part by part, and the memory that may be used."""
        quantize, layers = placement.quantize, placement.layers
        parts = self.weights(quantize, layers), self.workspace(batch), batch * self.sequence(context)
        quantized = "" if quantize == "none" else f" quantized to {quantize}"
        texts = f"{batch} texts of {context} tokens" if batch > 1 else f"a text of {context} tokens"
        return (
            f"weights{quantized} ({gigabytes(parts[0])}), workspace ({gigabytes(parts[1])}) and {texts} "
            f"({gigabytes(parts[2])}) need {gigabytes(sum(parts))}, and {gigabytes(self.size)} may be used "
            f"(memory={shown_memory(memory)}){self._host_shortage(placement, context, batch)}"
        )

    def _host_shortage(self, placement: Placement, context: int, batch: int) -> str:
        """Return that too little host memory is free for streamed experts, if that is so."""
        layers = self._to_stream(placement.quantize, context, batch)
        if placement.layers or not layers:
            return ""
        return (
            f"; it would fit with the experts of {len(layers)} layers in host memory, but they need "
            f"{gigabytes(self.streamed(placement.quantize, layers))} and {gigabytes(self.host)} may be used there"
        )


def _streamed_bytes(sizes: Mapping[str, WeightSize]) -> Counter[str]:
    """Return the bytes of the experts of each layer that are in host memory if the layer streams."""
    streamed: Counter[str] = Counter()
    for name, size in sizes.items():
        if name.startswith("decoder.layers.") and ".experts." in name:
            streamed[name.split(".")[2]] += size.nbytes - size.resident
    return streamed


def budget_of(
    source: CheckpointSource,
    device: DeviceMemory,
    memory: float | str,
    value_bytes: int,
    prefill: int | None,
    text_only: bool = False,
) -> Budget:
    on_gpu = device.device == "cuda"
    usual = PREFILL_GPU if on_gpu else PREFILL_CPU
    host = max(0, device.host - HOST_RESERVE)
    size, sizes = device.budget(memory), None
    if source.is_foreign:
        unpacked = not on_gpu and unpacks(source, value_bytes, size)
        sizes = source_sizes(source, value_bytes, on_gpu, unpacked=unpacked)
    vision = 0 if text_only or not has_vision(source) else vision_bytes(source.config, value_bytes if on_gpu else 2)
    return Budget(source.config, size, value_bytes, prefill or usual, host, sizes, on_cpu=not on_gpu, vision=vision)


def choose_placement(
    source: CheckpointSource,
    device: DeviceMemory,
    memory: float | str,
    value_bytes: int,
    quantize: str | None,
    *,
    max_batch: int,
    max_length: int | None,
    text_only: bool = False,
) -> Placement:
    """Return the precision to load a model with and its streamed layers, or raise DoesNotFitError before it is loaded.

    "auto" is the widest precision in which `max_batch` texts fit, or else a single text. None is no quantization. If a
    text does not fit, experts stream. Where they cannot, a given quantization is returned if its weights fit: texts and
    workspace may be smaller than their upper bounds.
    """
    if quantize not in (None, "auto"):
        check_known(quantize, on_cpu=device.device == "cpu")
    budget = budget_of(source, device, memory, value_bytes, None, text_only)
    given = None if quantize == "auto" else quantize or "none"
    allowed = [given] if given else budget.precisions()
    context = min(max_length or CONTEXT, source.config.max_position_embeddings)
    if several := budget.widest(allowed, context, max_batch, shorter=False):
        return Placement(several)
    if placement := budget.place(allowed, context, 1, shorter=given is None):
        return placement
    if given and budget.weights(given) <= budget.size:
        return Placement(given)
    needed, fits = shortage(budget, Placement(allowed[-1]), memory)
    raise DoesNotFitError(f"the model does not fit: {needed}", fits)


def shortage(budget: Budget, placement: Placement, memory: float | str) -> tuple[str, str | None]:
    """Return the memory that one text needs, in words, and a narrower quantization in which it fits."""
    context = min(CONTEXT, budget.config.max_position_embeddings)
    narrower = [name for name in budget.precisions() if budget.weights(name) < budget.weights(placement.quantize)]
    fits = budget.place(narrower, context, 1, shorter=True) if narrower else None
    return budget.needed(placement, context, 1, memory), fits.quantize if fits else None


def streaming_cost(placement: Placement, layers: int) -> str:
    """Return what streams, in words, for a model with this many layers."""
    return (
        f"the experts of {len(placement.layers)} of {layers} layers stream from host memory: "
        f"{gigabytes(placement.host_bytes)} copied per step"
    )

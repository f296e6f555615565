"""The plan of `gesso info MODEL --gpu CARD`: what fits on the card, a recommendation, and the best time of a step.

A roofline (Williams, Waterman, Patterson 2009, doi 10.1145/1498765.1498785): a step cannot be faster than its bytes at
the card's bandwidth, nor than its operations at the card's compute. Nothing here is measured; RULES lists the terms.
"""

import sys
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.vision import vision_bytes
from gesso.info.hardware import Card
from gesso.info.memory import CONTEXTS, PRECISIONS, cache_bytes, gigabytes, sequence_bytes, weight_bytes
from gesso.info.workspace import workspace_bytes
from gesso.model.config import Config

if TYPE_CHECKING:
    from gesso.model.transformer import DiffusionGemma

BATCHES = (1, 2, 4, 8)
STEPS = 16
PREFILL = 2048  # prompt tokens per pass, as a server runs them on a GPU
MAX_SEQUENCES = 4096
EMBEDDING = "decoder.embed_tokens.weight"  # also the table of soft embeddings, in bf16
QUANTIZE = {"bf16": "none", "fp8": "fp8", "4-bit": "int4"}  # value of --quantize
MIN_SPEEDUP = 1.25  # of fp8 over bf16, to recommend fp8 where bf16 fits too
RULES = (
    "Usable: the memory that the driver reports, without the system's share on a unified machine. The workspace is "
    "subtracted: CUDA context, activations and logits, which grow with the number of sequences (see "
    "gesso/info/workspace.py).",
    "A sequence: its cache, and the copy of its sliding-window rings that the engine keeps for the next turn.",
    "Step: the larger of bytes / bandwidth and operations / compute at the datasheet's peaks: a floor, not a forecast.",
    "Bytes: every weight once; of the experts the share that T tokens hit if routed evenly, 1 - (1 - k/E)^T; the "
    "embedding twice (lm_head, soft embedding); each sequence's cache.",
    "Operations: 2 per active weight and token; 4 per embedding value and token (lm_head, soft embedding); 4 per "
    "query, key and head dimension. Matrices, including lm_head, run at the rate of their precision (at 4-bit, all but "
    "the experts at that of fp8), or of bf16 where the card lacks it. Soft embedding, router and attention run at that "
    "of bf16.",
    "Streaming: where a precision does not fit, the experts of the fewest layers that make room for one sequence of 8K "
    "stay in pinned host memory. Two more layers' worth of memory holds the copies. Every step copies all of these "
    "experts at 80 % of the rate of PCIe, while other layers run: the step takes at least that long.",
    "Tokens/s: all sequences together, with as many passes per canvas as steps. The commit shares the first pass of "
    "the next canvas; its operations and those of prefill are not counted.",
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Cost of one denoising step in one precision, independent of batch and context."""

    dense_bytes: int  # read for any tokens, the embedding twice
    expert_bytes: int  # of all experts
    expert_values: int  # active expert weights per token: at the rate of the precision
    matrix_values: int  # the other matrices: at the rate of fp8 even if the experts have four bits
    bf16_values: int  # at the rate of bf16, soft embedding included


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Lower bound of the time of one step at one batch size."""

    batch: int
    expert_share: float
    bytes: int
    operations: int
    memory_seconds: float
    compute_seconds: float
    copy_seconds: float  # of streamed experts
    seconds: float
    limit: str
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Number of sequences of one length that fit at once."""

    context: int
    sequence_bytes: int
    sequences: int


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """The experts that stay in host memory. A step copies all of them."""

    layers: int
    host_bytes: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One precision on one card.

    `missing_bytes` are lacking for all weights and the shortest context. If there are any, experts are streamed, if
    possible. `free_bytes` are left for the cache of a single sequence beside the weights on the card.
    """

    precision: str
    in_hardware: bool
    weight_bytes: int
    free_bytes: int
    missing_bytes: int
    streamed: Streamed | None
    largest_context: int
    rooms: tuple[Capacity, ...]  # by context; a key of the JSON output
    floors: tuple[Floor, ...]  # of the batches that fit


@dataclass(frozen=True, kw_only=True)
class Plan:
    card: Card
    usable_bytes: int
    workspace_bytes: int  # of a single sequence
    steps: int
    canvas: int
    context: int  # of every sequence, for the floors
    fits: tuple[Fit, ...]
    choice: str | None
    reason: str
    rules: tuple[str, ...]

    def chosen(self) -> Fit | None:
        return next((fit for fit in self.fits if fit.precision == self.choice), None)


def plan(config: Config, card: Card, steps: int = STEPS) -> Plan:
    model = empty_model(config)
    context = min(CONTEXTS[0], config.max_position_embeddings)
    fits = tuple(_fit(config, model, card, precision, context, steps) for precision in PRECISIONS)
    choice, reason = _choose(fits)
    return Plan(
        card=card,
        usable_bytes=card.usable_bytes,
        workspace_bytes=_workspace(config, 1),
        steps=steps,
        canvas=config.canvas_length,
        context=context,
        fits=fits,
        choice=choice,
        reason=reason,
        rules=RULES,
    )


# --- memory ---------------------------------------------------------------------------------------------------------


def _fit(config: Config, model: "DiffusionGemma", card: Card, precision: str, context: int, steps: int) -> Fit:
    vision = vision_bytes(config, 2)
    weights = on_card = vision + sum(weight_bytes(name, p, precision) for name, p in model.named_parameters())
    missing = max(0, sequence_bytes(config, context) + weights + _workspace(config, 1) - card.usable_bytes)
    streamed = None
    if missing and (found := _stream(config, card, precision, context)):
        streamed, on_card = found
    free = card.usable_bytes - _workspace(config, 1) - on_card
    contexts = [c for c in CONTEXTS if c <= config.max_position_embeddings] or [context]
    rooms = tuple(
        Capacity(context=c, sequence_bytes=size, sequences=_sequences(config, card.usable_bytes - on_card, size))
        for c, size in ((c, sequence_bytes(config, c)) for c in contexts)
    )
    load = _load(config, model, precision)
    copied = streamed.host_bytes if streamed else 0
    return Fit(
        precision=precision,
        in_hardware=card.has(precision),
        weight_bytes=weights,
        free_bytes=free,
        missing_bytes=missing,
        streamed=streamed,
        largest_context=bisect_right(
            range(1, config.max_position_embeddings + 1), free, key=lambda length: sequence_bytes(config, length)
        ),
        rooms=rooms,
        floors=tuple(
            _floor(config, load, card, precision, batch, context, steps, copied)
            for batch in BATCHES
            if batch <= rooms[0].sequences
        ),
    )


def _stream(config: Config, card: Card, precision: str, context: int) -> tuple[Streamed, int] | None:
    """Return the experts to stream, and the bytes of all weights on the card, slots included."""
    from gesso.info.budget import Budget

    if card.pcie is None:
        return None
    budget = Budget(
        replace(config, quantization=None), card.usable_bytes, 2, PREFILL, sys.maxsize, vision=vision_bytes(config, 2)
    )
    placed = budget.stream(QUANTIZE[precision], context, 1)
    if placed is None:
        return None
    streamed = Streamed(layers=len(placed.layers), host_bytes=placed.host_bytes)
    return streamed, budget.weights(placed.quantize, placed.layers)


def _workspace(config: Config, batch: int) -> int:
    return workspace_bytes(config, batch, PREFILL, config.canvas_length, images=config.has_image_tokens)


def _sequences(config: Config, free: int, size: int) -> int:
    """Return how many sequences of `size` bytes fit, together with their workspace."""
    return bisect_right(range(1, MAX_SEQUENCES + 1), free, key=lambda count: _workspace(config, count) + count * size)


# --- time -----------------------------------------------------------------------------------------------------------


def _load(config: Config, model: "DiffusionGemma", precision: str) -> Load:
    from gesso.checkpoint.quantize.formats import format_of, is_expert

    dense = experts = active = matrices = plain = 0
    for name, p in model.named_parameters():
        if name.startswith("encoder."):
            continue  # a denoising step does not read the weights of an untied encoder
        if is_expert(name):
            experts += weight_bytes(name, p, precision)
            active += p.numel() // config.num_experts * config.top_k_experts
            continue
        dense += weight_bytes(name, p, precision)
        if format_of(name, p.shape, "fp8") and (name != EMBEDDING or config.tie_word_embeddings):
            matrices += p.numel()
        elif p.ndim >= 2:
            plain += p.numel()
    if config.tie_word_embeddings:  # head and embedding are one tensor, which is read twice
        embedding = model.get_parameter(EMBEDDING)
        dense += weight_bytes(EMBEDDING, embedding, precision)
        plain += embedding.numel()
    return Load(
        dense_bytes=dense, expert_bytes=experts, expert_values=active, matrix_values=matrices, bf16_values=plain
    )


def _floor(
    config: Config, load: Load, card: Card, precision: str, batch: int, context: int, steps: int, copied: int
) -> Floor:
    tokens = batch * config.canvas_length
    share = expert_share(config.num_experts, config.top_k_experts, tokens)
    size = load.dense_bytes + round(share * load.expert_bytes) + batch * cache_bytes(config, context)
    plain = 2 * tokens * load.bf16_values + tokens * _attention_operations(config, context)
    work = (
        (2 * tokens * load.expert_values, card.tflops(precision)),
        (2 * tokens * load.matrix_values, card.tflops("fp8" if precision == "4-bit" else precision)),
        (plain, card.bf16_tflops),
    )
    memory = size / (card.bandwidth_gbs * 1e9)
    compute = sum(operations / (rate * 1e12) for operations, rate in work)
    copies = copied / (card.pcie_gbs * 1e9) if card.pcie_gbs else 0.0
    seconds = max(memory, compute, copies)
    return Floor(
        batch=batch,
        expert_share=share,
        bytes=size,
        operations=sum(operations for operations, _ in work),
        memory_seconds=memory,
        compute_seconds=compute,
        copy_seconds=copies,
        seconds=seconds,
        limit={memory: "memory", compute: "compute", copies: "PCIe"}[seconds],
        tokens_per_second=tokens / (steps * seconds),
    )


def expert_share(experts: int, active: int, tokens: int) -> float:
    """Return the expected share of experts that at least one token chooses, under even and independent routing."""
    return 1 - (1 - active / experts) ** tokens


def _attention_operations(config: Config, context: int) -> int:
    """Return the operations per canvas token in all layers: scores and values, 2 each per key and head dimension."""
    total = 0
    for layer in config.layers:
        seen = min(context, config.sliding_window - 1) if layer.sliding else context
        total += 4 * (seen + config.canvas_length) * config.num_attention_heads * layer.head_dim
    return total


# --- recommendation -------------------------------------------------------------------------------------------------


def _choose(fits: tuple[Fit, ...]) -> tuple[str | None, str]:
    """Choose fp8 if it fits and is faster, bf16 if fp8 gains little, and 4-bit only if nothing wider fits."""
    bf16, fp8, four = fits
    if four.streamed:
        return "4-bit", (
            f"No precision fits: 4-bit is {gigabytes(four.missing_bytes)} short. The experts of {four.streamed.layers} "
            f"layers stay in host memory ({gigabytes(four.streamed.host_bytes)}), and every step copies them."
        )
    if four.missing_bytes:
        return None, f"No precision fits: 4-bit is {gigabytes(four.missing_bytes)} short."
    if fp8.missing_bytes:
        weight_only = "" if four.in_hardware else " The card computes it in bf16: it saves memory, not operations."
        return "4-bit", f"The only precision that fits: fp8 is {gigabytes(fp8.missing_bytes)} short.{weight_only}"
    faster = fp8.floors[0].seconds / four.floors[0].seconds
    alone = "" if four.in_hardware else " for one sequence (the card computes it in bf16, so a batch gains nothing)"
    four_bit = f" 4-bit would be {faster:.1f} times faster still{alone}; measure its cost in quality first."
    if bf16.missing_bytes:
        return "fp8", f"The widest precision that fits: bf16 is {gigabytes(bf16.missing_bytes)} short.{four_bit}"
    gain = bf16.floors[0].seconds / fp8.floors[0].seconds
    if gain < MIN_SPEEDUP:
        return "bf16", f"It fits as it is, and fp8 would make a step only {gain:.2f} times faster."
    return "fp8", f"A step is {gain:.1f} times faster than in bf16, which fits too and is the reference.{four_bit}"

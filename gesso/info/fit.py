"""The plan of `gesso info MODEL --gpu CARD`: what fits on the card, a recommendation, and the best time of a step.

A roofline (Williams, Waterman, Patterson 2009, doi 10.1145/1498765.1498785): a step cannot be faster than its bytes at
the card's bandwidth, nor than its operations at the card's compute. Nothing here is measured; RULES lists the terms.
"""

import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gesso.cards.card import Card
from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.vision import vision_bytes
from gesso.info.precisions import CONTEXTS, QUANTIZE, TITLES
from gesso.memory.sequences import cache_bytes
from gesso.memory.units import gigabytes
from gesso.model.config import Config

if TYPE_CHECKING:
    from gesso.memory.budget import Budget
    from gesso.model.transformer import DiffusionGemma

BATCHES = (1, 2, 4, 8)
STEPS = 16
EMBEDDING = "decoder.embed_tokens.weight"  # also the table of soft embeddings, in bf16
MIN_SPEEDUP = 1.25  # of fp8 over bf16, to recommend fp8 where bf16 fits too
RULES = (
    "Usable: the memory that the driver reports, without the system's share on a unified machine. The workspace is "
    "subtracted: CUDA context, activations and logits, which grow with the number of sequences (see "
    "gesso/memory/workspace.py).",
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
class StepCost:
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
class CardPlan:
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
    kernels: dict[str, str]  # the tiles of each family of kernels, for the chosen precision; empty without Triton

    def chosen(self) -> Fit | None:
        return next((fit for fit in self.fits if fit.precision == self.choice), None)


def plan(config: Config, card: Card, steps: int = STEPS) -> CardPlan:
    budget = budget_on(config, card)
    model = empty_model(config)
    context = min(CONTEXTS[0], config.max_position_embeddings)
    fits = tuple(_fit(budget, model, card, TITLES[name], context, steps) for name in budget.precisions())
    choice, reason = _choose(fits)
    return CardPlan(
        card=card,
        usable_bytes=card.usable_bytes,
        workspace_bytes=budget.workspace(1),
        steps=steps,
        canvas=config.canvas_length,
        context=context,
        fits=fits,
        choice=choice,
        reason=reason,
        rules=RULES,
        kernels=_kernels(config, card, choice),
    )


def _kernels(config: Config, card: Card, choice: str | None) -> dict[str, str]:
    if find_spec("triton") is None:
        return {}
    from gesso.backends.cuda.choices import choices

    return {str(family): tiles for family, tiles in choices(config, card, low=choice != "bf16").items()}


def budget_on(config: Config, card: Card) -> "Budget":
    """Return the sizes of a model, and what fits a card of which nothing is in use."""
    from gesso.memory.budget import PREFILL_GPU, Budget

    host = 0 if card.pcie is None else sys.maxsize  # of unknown size
    shape = replace(config, quantization=None)
    return Budget(shape, card.usable_bytes, 2, PREFILL_GPU, host, vision=vision_bytes(config, 2))


# --- memory ---------------------------------------------------------------------------------------------------------


def _fit(budget: "Budget", model: "DiffusionGemma", card: Card, precision: str, context: int, steps: int) -> Fit:
    config, quantize = budget.config, QUANTIZE[precision]
    missing = max(0, budget.total(quantize, context, 1) - budget.size)
    placement = budget.stream(quantize, context, 1) if missing else None
    layers = placement.layers if placement else ()
    copied = placement.host_bytes if placement else 0
    free = budget.size - budget.workspace(1) - budget.weights(quantize, layers)
    contexts = [c for c in CONTEXTS if c <= config.max_position_embeddings] or [context]
    rooms = tuple(
        Capacity(context=c, sequence_bytes=budget.sequence(c), sequences=budget.sequences(quantize, c, layers))
        for c in contexts
    )
    load = _load(budget, model, quantize)
    return Fit(
        precision=precision,
        in_hardware=card.has(precision),
        weight_bytes=budget.weights(quantize),
        free_bytes=free,
        missing_bytes=missing,
        streamed=Streamed(layers=len(layers), host_bytes=copied) if layers else None,
        largest_context=budget.longest(free),
        rooms=rooms,
        floors=tuple(
            _floor(config, load, card, precision, batch, context, steps, copied)
            for batch in BATCHES
            if batch <= rooms[0].sequences
        ),
    )


# --- time -----------------------------------------------------------------------------------------------------------


def _load(budget: "Budget", model: "DiffusionGemma", quantize: str) -> StepCost:
    from gesso.checkpoint.quantize.formats import format_of, is_expert

    config, sizes = budget.config, budget.sizes_of(quantize)
    dense = experts = active = matrices = plain = 0
    for name, p in model.named_parameters():
        if name.startswith("encoder."):
            continue  # a denoising step does not read the weights of an untied encoder
        if is_expert(name):
            experts += sizes[name].nbytes
            active += p.numel() // config.num_experts * config.top_k_experts
            continue
        dense += sizes[name].nbytes
        if format_of(name, p.shape, "fp8") and (name != EMBEDDING or config.tie_word_embeddings):
            matrices += p.numel()
        elif p.ndim >= 2:
            plain += p.numel()
    if config.tie_word_embeddings:  # head and embedding are one tensor, which is read twice
        dense += sizes[EMBEDDING].nbytes
        plain += model.get_parameter(EMBEDDING).numel()
    return StepCost(
        dense_bytes=dense, expert_bytes=experts, expert_values=active, matrix_values=matrices, bf16_values=plain
    )


def _floor(
    config: Config, load: StepCost, card: Card, precision: str, batch: int, context: int, steps: int, copied: int
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
    bf16, fp8 = fits[:2]
    four = fits[2] if len(fits) > 2 else None  # not every model can be stored in it
    narrowest = four or fp8
    short = f"No precision fits: {narrowest.precision} is {gigabytes(narrowest.missing_bytes)} short."
    if narrowest.streamed:
        return narrowest.precision, (
            f"{short} The experts of {narrowest.streamed.layers} layers stay in host memory "
            f"({gigabytes(narrowest.streamed.host_bytes)}), and every step copies them."
        )
    if narrowest.missing_bytes:
        return None, short
    if four and fp8.missing_bytes:
        weight_only = "" if four.in_hardware else " The card computes it in bf16: it saves memory, not operations."
        return "4-bit", f"The only precision that fits: fp8 is {gigabytes(fp8.missing_bytes)} short.{weight_only}"
    faster = _faster(fp8, four) if four else ""
    if bf16.missing_bytes:
        return "fp8", f"The widest precision that fits: bf16 is {gigabytes(bf16.missing_bytes)} short.{faster}"
    gain = bf16.floors[0].seconds / fp8.floors[0].seconds
    if gain < MIN_SPEEDUP:
        return "bf16", f"It fits as it is, and fp8 would make a step only {gain:.2f} times faster."
    return "fp8", f"A step is {gain:.1f} times faster than in bf16, which fits too and is the reference.{faster}"


def _faster(fp8: Fit, four: Fit) -> str:
    """Return how much faster 4-bit would be than fp8, in words."""
    times = fp8.floors[0].seconds / four.floors[0].seconds
    alone = "" if four.in_hardware else " for one sequence (the card computes it in bf16, so a batch gains nothing)"
    return f" 4-bit would be {times:.1f} times faster still{alone}; measure its cost in quality first."

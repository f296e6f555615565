"""What `gesso info MODEL --gpu CARD` adds: what fits on the card, what to choose, and how fast a step could be at best.

A roofline (Williams, Waterman, Patterson 2009, doi 10.1145/1498765.1498785): a step cannot be faster than its bytes at
the card's bandwidth, nor than its operations at the card's compute. Nothing here is measured; RULES says what counts.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gesso.checkpoint import huggingface as checkpoint
from gesso.info.hardware import Card
from gesso.info.report import CONTEXTS, PRECISIONS, cache_bytes, pairs, short, weight_bytes
from gesso.info.workspace import workspace_bytes
from gesso.model.config import Config

if TYPE_CHECKING:
    from gesso.model.transformer import DiffusionGemma

BATCHES = (1, 2, 4, 8)
STEPS = 16
PREFILL = 2048  # tokens of prompts in a pass, as a server reads them on a GPU
MOST = 4096  # sequences that are counted
EMBEDDING = "decoder.embed_tokens.weight"  # soft embeddings are made of it, in bf16
WORTH_IT = 1.25  # how much shorter fp8 must make a step to be preferred to the checkpoint's own bf16
RULES = (
    "Usable: what the driver reports, less what a unified machine's system keeps. The workspace goes off it: CUDA "
    "context, activations and logits, which grow with the number of sequences (see gesso/info/workspace.py).",
    "A sequence: its cache, and the second copy of its rings that the engine keeps for the next turn.",
    "Step: the larger of bytes / bandwidth and operations / compute at the datasheet's peaks: a floor, not a forecast.",
    "Bytes: every weight once; of the experts the share that T tokens hit if routed evenly, 1 - (1 - k/E)^T; the "
    "embedding twice (lm_head, soft embedding); each sequence's cache.",
    "Operations: 2 for each active weight and token; 4 for each embedding value and token (lm_head, soft embedding); "
    "4 for each query, key and head dimension. Matrices run at the rate of their precision (at 4-bit, all but the "
    "experts at that of fp8), lm_head among them, or of bf16 where the card lacks it; soft embedding, router and "
    "attention at that of bf16.",
    "Tokens/s: all sequences together, a canvas taking as many passes as steps: the commit rides with the next "
    "canvas's first pass, its own operations left out, and so is the reading of prompts.",
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one denoising step of a model costs in one precision, apart from batch and context."""

    dense_bytes: int  # read whatever the tokens are, the embedding twice
    expert_bytes: int  # of all experts
    expert_values: int  # active weights of a token that run at the precision's rate
    matrix_values: int  # the other matrices: at that of fp8 even if the experts have four bits
    bf16_values: int  # and at that of bf16, the soft embedding among them


@dataclass(frozen=True, kw_only=True)
class Floor:
    batch: int
    expert_share: float
    bytes: int
    operations: int
    memory_seconds: float
    compute_seconds: float
    seconds: float
    limit: str
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many sequences of one length lie side by side."""

    context: int
    sequence_bytes: int
    sequences: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One precision on one card.

    `free_bytes` are those left for the cache of a single sequence; `missing_bytes` is what it lacks at the shortest
    context.
    """

    precision: str
    in_hardware: bool
    weight_bytes: int
    free_bytes: int
    missing_bytes: int
    largest_context: int
    rooms: tuple[Room, ...]
    floors: tuple[Floor, ...]  # of the batches that fit


@dataclass(frozen=True, kw_only=True)
class Plan:
    card: Card
    usable_bytes: int
    workspace_bytes: int  # of a single sequence
    steps: int
    canvas: int
    context: int  # of every sequence, where a floor is computed
    fits: tuple[Fit, ...]
    choice: str | None
    reason: str
    rules: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    def chosen(self) -> Fit | None:
        return next((fit for fit in self.fits if fit.precision == self.choice), None)


def plan(directory: Path, card: Card, steps: int = STEPS) -> Plan:
    config = Config.from_directory(directory)
    model = checkpoint.empty_model(config)
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
    weights = sum(weight_bytes(name, p, precision) for name, p in model.named_parameters())
    free = card.usable_bytes - _workspace(config, 1) - weights
    contexts = [c for c in CONTEXTS if c <= config.max_position_embeddings] or [context]
    rooms = tuple(
        Room(context=c, sequence_bytes=size, sequences=_sequences(config, card.usable_bytes - weights, size))
        for c, size in ((c, sequence_bytes(config, c)) for c in contexts)
    )
    load = _load(config, model, precision)
    return Fit(
        precision=precision,
        in_hardware=card.has(precision),
        weight_bytes=weights,
        free_bytes=free,
        missing_bytes=max(0, rooms[0].sequence_bytes - free),
        largest_context=bisect_right(
            range(1, config.max_position_embeddings + 1), free, key=lambda length: sequence_bytes(config, length)
        ),
        rooms=rooms,
        floors=tuple(
            _floor(config, load, card, precision, batch, context, steps)
            for batch in BATCHES
            if batch <= rooms[0].sequences
        ),
    )


def _workspace(config: Config, batch: int) -> int:
    return workspace_bytes(config, batch, PREFILL, config.canvas_length)


def _sequences(config: Config, free: int, size: int) -> int:
    """Return how many sequences of `size` bytes fit, with the workspace for so many."""
    return bisect_right(range(1, MOST + 1), free, key=lambda count: _workspace(config, count) + count * size)


def sequence_bytes(config: Config, context: int, value_bytes: int = 2) -> int:
    """Of one text in the engine: its cache, and the copy of its rings that is kept for the next turn."""
    import torch

    from gesso.model.cache import KVCache

    cache = KVCache(config, 1, context, torch.device("meta"), torch.bfloat16)
    cache.save(0)
    return cache.nbytes * value_bytes // 2


# --- time -----------------------------------------------------------------------------------------------------------


def _load(config: Config, model: "DiffusionGemma", precision: str) -> Load:
    from gesso.checkpoint.quantize.formats import format_of, is_expert

    dense = experts = active = matrices = plain = 0
    for name, p in model.named_parameters():
        if name.startswith("encoder."):
            continue  # an untied encoder has its own weights, and a step of the canvas does not read them
        if is_expert(name):
            experts += weight_bytes(name, p, precision)
            active += p.numel() // config.num_experts * config.top_k_experts
            continue
        dense += weight_bytes(name, p, precision)
        if format_of(name, p.shape, "fp8") and (name != EMBEDDING or config.tie_word_embeddings):
            matrices += p.numel()
        elif p.ndim >= 2:
            plain += p.numel()
    if config.tie_word_embeddings:  # the head is the embedding: one tensor, two passes over it
        embedding = model.get_parameter(EMBEDDING)
        dense += weight_bytes(EMBEDDING, embedding, precision)
        plain += embedding.numel()
    return Load(
        dense_bytes=dense, expert_bytes=experts, expert_values=active, matrix_values=matrices, bf16_values=plain
    )


def _floor(config: Config, load: Load, card: Card, precision: str, batch: int, context: int, steps: int) -> Floor:
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
    seconds = max(memory, compute)
    return Floor(
        batch=batch,
        expert_share=share,
        bytes=size,
        operations=sum(operations for operations, _ in work),
        memory_seconds=memory,
        compute_seconds=compute,
        seconds=seconds,
        limit="memory" if memory >= compute else "compute",
        tokens_per_second=tokens / (steps * seconds),
    )


def expert_share(experts: int, active: int, tokens: int) -> float:
    """The expected share of experts that at least one token chooses, if each token's choice is even and its own."""
    return 1 - (1 - active / experts) ** tokens


def _attention_operations(config: Config, context: int) -> int:
    """Of one canvas token in all layers: scores and weighted values, 2 each for a key and a dimension of a head."""
    total = 0
    for layer in config.layers:
        seen = min(context, config.sliding_window - 1) if layer.sliding else context
        total += 4 * (seen + config.canvas_length) * config.num_attention_heads * layer.head_dim
    return total


# --- advice ---------------------------------------------------------------------------------------------------------


def _choose(fits: tuple[Fit, ...]) -> tuple[str | None, str]:
    """fp8 where it fits and pays; bf16 where fp8 would gain little; 4-bit only where nothing wider fits."""
    bf16, fp8, four = fits
    if four.missing_bytes:
        return None, f"It does not fit in any precision: in 4-bit it is {_gb(four.missing_bytes)} short."
    if fp8.missing_bytes:
        weight_only = "" if four.in_hardware else " The card computes it in bf16: it saves memory, not operations."
        return "4-bit", f"The only precision that fits: fp8 is {_gb(fp8.missing_bytes)} short.{weight_only}"
    faster = fp8.floors[0].seconds / four.floors[0].seconds
    alone = "" if four.in_hardware else " for one sequence (the card computes it in bf16, so a batch gains nothing)"
    four_bit = f" 4-bit would be {faster:.1f} times faster still{alone}; measure first what it costs in quality."
    if bf16.missing_bytes:
        return "fp8", f"The widest precision that fits: bf16 is {_gb(bf16.missing_bytes)} short.{four_bit}"
    gain = bf16.floors[0].seconds / fp8.floors[0].seconds
    if gain < WORTH_IT:
        return "bf16", f"It fits as it is, and fp8 would make a step only {gain:.2f} times faster."
    return "fp8", f"A step is {gain:.1f} times faster than in bf16, which fits too and is the reference.{four_bit}"


def _gb(size: int) -> str:
    return short(size, (" GB", " MB", " kB", " B"))


# --- for people -----------------------------------------------------------------------------------------------------


def render(plan: Plan, console: Console) -> None:
    card = plan.card
    console.print(Text(f"\nOn the {card.title}", style="bold"))
    console.print(pairs(_card_rows(plan)))
    console.print(Text("\nWhat fits", style="bold"))
    console.print(_memory_table(plan))
    console.print(Text(f"\nChoose {plan.choice}" if plan.choice else "\nDoes not fit", style="bold"))
    console.print(Text(plan.reason))
    if chosen := plan.chosen():
        console.print(Text(f"The largest context that fits at {plan.choice}: {chosen.largest_context:,} tokens."))
        title = f"\nFloor of a step, {plan.context:,} tokens cached; ceiling of tokens/s at {plan.steps} steps a canvas"
        console.print(Text(title, style="bold"))
        console.print(_time_table(plan))
    for rule in plan.rules:
        console.print(Text(rule, style="dim"))


def _card_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    card = plan.card
    yield "memory", f"{card.memory_gb:g} GB as sold; usable: {_gb(plan.usable_bytes)} of 10^9 bytes"
    yield "bandwidth", f"{card.bandwidth_gbs:,.0f} GB/s"
    rates = {"bf16": card.bf16_tflops, "fp8": card.fp8_tflops, "fp4": card.fp4_tflops}
    yield "dense TFLOP/s", ", ".join(f"{name} {f'{rate:,g}' if rate else 'none'}" for name, rate in rates.items())
    yield "source", card.source
    if card.note:
        yield "note", card.note


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _memory_table(plan: Plan) -> Table:
    contexts = [room.context for room in plan.fits[0].rooms]
    table = _table("", "weights", "left for cache", *(f"x {_tokens(context)}" for context in contexts), "context")
    for fit in plan.fits:
        left = _gb(fit.free_bytes) if not fit.missing_bytes else f"{_gb(fit.missing_bytes)} short"
        counts = [f"{room.sequences:,}" for room in fit.rooms]
        table.add_row(fit.precision, _gb(fit.weight_bytes), left, *counts, f"{fit.largest_context:,}")
    sizes = [_gb(room.sequence_bytes) for room in plan.fits[0].rooms]
    table.add_row("a sequence", "", "", *sizes, "")
    table.caption = "x 8K: how many sequences of that many tokens side by side; context: the longest for one alone"
    table.caption_justify = "left"
    return table


def _time_table(plan: Plan) -> Table:
    table = _table("", "batch", "experts", "bytes", "operations", "step, ms", "limit", "tokens/s")
    for fit in plan.fits:
        for floor in fit.floors:
            table.add_row(
                fit.precision,
                f"{floor.batch}",
                f"{floor.expert_share:.0%}",
                _gb(floor.bytes),
                f"{floor.operations / 1e12:.3g} T",
                f"{floor.seconds * 1e3:.3g}",
                floor.limit,
                f"{floor.tokens_per_second:,.0f}",
            )
    table.caption = "experts: the expected share that a step reads"
    table.caption_justify = "left"
    return table


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"

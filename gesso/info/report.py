"""The report of `gesso info MODEL`: architecture, memory, files, and reasons why the model would not load.

The model's own modules and cache are counted on the meta device, so the numbers cannot drift from the code. No weight
is read, only the headers of the weight files.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.parameters import empty_model, is_vision
from gesso.checkpoint.safetensors import INDEX
from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.vision import has_vision, is_buffer, vision_bytes, vision_tensors
from gesso.errors import CheckpointError, InputError
from gesso.info.formats import StoredAs, stored_formats
from gesso.info.precisions import CONTEXTS, MEMORY_RULES, TITLES
from gesso.memory.sequences import cache_bytes
from gesso.memory.weights import NOT_PACKED, source_sizes
from gesso.model.config import Config

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    from gesso.model.transformer import DiffusionGemma

_ROLES = {
    INDEX: "weights",
    **dict.fromkeys(
        ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"), "config"
    ),
    **dict.fromkeys(
        ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
        "tokenizer",
    ),
    **dict.fromkeys(("chat_template.jinja", "chat_template.json"), "chat template"),
}


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The layers that share one attention geometry."""

    kind: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Architecture:
    layers: int
    sliding_layers: int
    global_layers: int
    attention: tuple[AttentionShape, ...]
    hidden_size: int
    mlp_width: int
    experts: int
    active_experts: int
    expert_width: int
    vocabulary: int
    window: int
    context: int
    canvas: int


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameter counts as on the model card: without buffers (one scalar per layer, the vision tower's calibration)."""

    total: int
    text: int
    vision: int
    active: int  # of the text model per token, without the experts not chosen


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One cell of the table. Cache and total are None for a context beyond the model's own."""

    precision: str
    context: int
    weight_bytes: int
    cache_bytes: int | None
    total_bytes: int | None
    beyond_context: bool


@dataclass(frozen=True, kw_only=True)
class CpuMemory:
    """The need of a CPU for one text, in float32, and the bytes that it reads to write a token by itself."""

    quantize: str  # "none": as stored
    context: int
    weight_bytes: int
    total_bytes: int  # with workspace and cache
    token_bytes: int


@dataclass(frozen=True, kw_only=True)
class File:
    name: str
    role: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The content of the weight files; a directory without weights has 0 files."""

    files: int
    values_by_dtype: dict[str, int]
    vision: bool
    quantization: str | None  # fp8, int4, nvfp4, or one of them with -layers; or the tool that wrote the files
    formats: tuple[StoredAs, ...]  # of the matrices; empty if there is a problem with the files


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    name: str
    path: str  # empty: a shape without files
    architecture: Architecture
    parameters: Parameters
    memory: tuple[Memory, ...]
    memory_rules: tuple[str, ...]
    cpu: tuple[CpuMemory, ...]
    weights: Weights
    files: tuple[File, ...]
    problems: tuple[str, ...]


def describe(source: CheckpointSource, name: str) -> ModelReport:
    config = source.config
    model = empty_model(config)
    weight_files, problems = _examine(source)
    return ModelReport(
        name=name,
        path="" if source.path is None else str(source.path.resolve()),
        architecture=_architecture(config),
        parameters=_parameters(config, model),
        memory=tuple(_memory(source, bool(weight_files) and not problems)),
        memory_rules=MEMORY_RULES,
        cpu=tuple(_cpu(source, bool(weight_files) and not problems)),
        weights=_weights(source, weight_files),
        files=tuple(
            File(
                name=file.name,
                role="weights" if file in weight_files else _ROLES.get(file.name, "other"),
                bytes=file.stat().st_size,
            )
            for file in _listed(source)
            if file.is_file()
        ),
        problems=tuple(problems),
    )


def _listed(source: CheckpointSource) -> list[Path]:
    """Return the files of a checkpoint; a shape has none."""
    if source.path is None:
        return []
    return source.files if source.is_file else sorted(source.directory.iterdir())


# --- model ----------------------------------------------------------------------------------------------------------


def _architecture(config: Config) -> Architecture:
    sliding = sum(layer.sliding for layer in config.layers)
    shapes = Counter((layer.sliding, layer.kv_heads, layer.head_dim) for layer in config.layers)
    return Architecture(
        layers=len(config.layers),
        sliding_layers=sliding,
        global_layers=len(config.layers) - sliding,
        attention=tuple(
            AttentionShape(
                kind="sliding" if is_sliding else "global",
                layers=count,
                query_heads=config.num_attention_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
            )
            for (is_sliding, kv_heads, head_dim), count in shapes.items()
        ),
        hidden_size=config.hidden_size,
        mlp_width=config.intermediate_size,
        experts=config.num_experts,
        active_experts=config.top_k_experts,
        expert_width=config.moe_intermediate_size,
        vocabulary=config.vocab_size,
        window=config.sliding_window,
        context=config.max_position_embeddings,
        canvas=config.canvas_length,
    )


def _parameters(config: Config, model: "DiffusionGemma") -> Parameters:
    counts = {name: p.numel() for name, p in model.named_parameters() if ".layer_scalars." not in name}
    text = sum(counts.values())
    experts = sum(count for name, count in counts.items() if ".experts." in name)
    vision = sum(math.prod(shape) for name, shape in vision_tensors(config).items() if not is_buffer(name))
    idle = experts // config.num_experts * (config.num_experts - config.top_k_experts)
    return Parameters(total=text + vision, text=text, vision=vision, active=text - idle)


def _memory(source: CheckpointSource, readable: bool) -> Iterator[Memory]:
    """Yield the table. The files of other tools have one row: what their formats become on a GPU."""
    from gesso.memory.budget import PREFILL_GPU, Budget

    config = source.config
    if readable and source.is_foreign:
        vision = vision_bytes(config, 2) if has_vision(source) else 0
        stored = Budget(config, 0, 2, PREFILL_GPU, sizes=source_sizes(source, 2, on_gpu=True), vision=vision)
        sizes = {"these files": stored.weights(NOT_PACKED)}
    else:
        shape = Budget(replace(config, quantization=None), 0, 2, PREFILL_GPU, vision=vision_bytes(config, 2))
        sizes = {TITLES[name]: shape.weights(name) for name in shape.precisions()}
    for precision, weights in sizes.items():
        for context in CONTEXTS:
            beyond = context > config.max_position_embeddings
            cache = None if beyond else cache_bytes(config, context)
            yield Memory(
                precision=precision,
                context=context,
                weight_bytes=weights,
                cache_bytes=cache,
                total_bytes=None if cache is None else weights + cache,
                beyond_context=beyond,
            )


def _cpu(source: CheckpointSource, readable: bool) -> Iterator[CpuMemory]:
    from gesso.memory.budget import CONTEXT, PREFILL_CPU, Budget

    if source.is_foreign and not readable:
        return  # only the files have the formats of other tools
    sizes = source_sizes(source, 4, on_gpu=False) if source.is_foreign else None
    vision = vision_bytes(source.config, 2) if has_vision(source) else 0
    budget = Budget(source.config, 0, 4, PREFILL_CPU, sizes=sizes, on_cpu=True, vision=vision)
    context = min(CONTEXT, source.config.max_position_embeddings)
    for quantize in budget.precisions():
        yield CpuMemory(
            quantize=quantize,
            context=context,
            weight_bytes=budget.weights(quantize),
            total_bytes=budget.total(quantize, context, 1),
            token_bytes=budget.token(quantize),
        )


# --- directory ------------------------------------------------------------------------------------------------------


def _examine(source: CheckpointSource) -> tuple[list[Path], list[str]]:
    """Return the weight files and all problems that would prevent loading or generating.

    A directory without weights is not a problem, even if an index names some: those of a hub checkpoint may not have
    been downloaded yet.
    """
    files, problems = [], []
    try:
        files = source.files
        if not any(map(os.path.exists, files)):
            files = []
        if files:
            problems += source.problems
    except CheckpointError as error:
        problems.append(str(error))
    for examine in (_examine_tokenizer, GenerationDefaults.from_directory):
        try:
            examine(source.directory, source.config)
        except (CheckpointError, InputError) as error:
            problems.append(str(error))
    return files, problems


def _examine_tokenizer(directory: Path, config: Config) -> None:
    """Load the tokenizer and render a short conversation with its template."""
    from gesso.chat.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory / 'tokenizer.json'} has {tokenizer.vocab_size:,} tokens, but the model has embeddings for "
            f"{config.vocab_size:,}; use the files of one checkpoint"
        )
    tokenizer.render([{"role": "user", "content": "Hello"}])


def _weights(source: CheckpointSource, files: list[Path]) -> Weights:
    values: Counter[str] = Counter()
    stored = source.headers[0] if files else {}
    for part in stored.values():
        values[part.dtype] += math.prod(part.shape)
    return Weights(
        files=len(files),
        values_by_dtype=dict(values),
        vision=any(map(is_vision, stored)),
        quantization=source.config.quantization,
        formats=stored_formats(source) if files and not source.problems else (),
    )

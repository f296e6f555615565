"""What `gesso info MODEL` says: the architecture in numbers, the memory it needs, what would keep it from loading.

Everything is counted on the meta device by the code that runs the model (its modules, its cache), so that the numbers
cannot drift from it. No weight is read, only the headers of the files that hold them.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gesso.checkpoint import huggingface as checkpoint
from gesso.checkpoint.vision import is_buffer, is_vision, vision_tensors
from gesso.errors import CheckpointError, InputError
from gesso.model.config import LAYERS, Config
from gesso.printable import printable
from gesso.settings import GenerationDefaults

if TYPE_CHECKING:  # torch takes a second to import, and who asks for a bad path should not wait for it
    from torch import Tensor

    from gesso.model.transformer import DiffusionGemma

PRECISIONS = ("bf16", "fp8", "4-bit")
CONTEXTS = (8_192, 32_768, 262_144)
MEMORY_RULES = (
    "Weights: the text model alone, since gesso never loads the vision tower.",
    "bf16: 2 bytes a value.",
    "fp8: 1 byte a value of the attention, MLP, expert and self-conditioning matrices and of the embeddings, and a "
    "float32 scale for each of their output channels (of each expert); norms and router stay in bf16.",
    "4-bit: 4.5 bits a value of the experts (NVFP4: 16 values share an FP8 scale; int4: 32 share one in bf16); the "
    "rest as in fp8.",
    "Cache: bf16, one sequence; global layers keep every token, sliding layers the last window - 1.",
    "What a pass works with (activations, logits) comes on top.",
)

_CONFIG_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                    "tokenizer.model")  # fmt: skip
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Layers whose attention has the same geometry."""

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
    """Counted as the model card counts: without buffers (a scalar a layer, the tower's calibration)."""

    total: int
    text: int
    vision: int
    active: int  # of the text model, the experts not chosen left out


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One cell of the table. No cache and no sum where the context is beyond the model's own."""

    precision: str
    context: int
    weight_bytes: int
    cache_bytes: int | None
    total_bytes: int | None
    beyond_context: bool


@dataclass(frozen=True, kw_only=True)
class File:
    name: str
    role: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What the weight files hold; no files at all is an answer too."""

    files: int
    values_by_dtype: dict[str, int]
    vision: bool
    quantization: str | None  # fp8, int4, nvfp4, or one of them with -layers


@dataclass(frozen=True, kw_only=True)
class Report:
    name: str
    path: str
    architecture: Architecture
    parameters: Parameters
    memory: tuple[Memory, ...]
    memory_rules: tuple[str, ...]
    weights: Weights
    files: tuple[File, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # there and back: tuples become lists
        return data


def describe(directory: Path, name: str) -> Report:
    config = Config.from_directory(directory)
    model = checkpoint.empty_model(config)
    files, problems = _examine(directory, config)
    return Report(
        name=name,
        path=str(directory.resolve()),
        architecture=_architecture(config),
        parameters=_parameters(config, model),
        memory=tuple(_memory(config, model)),
        memory_rules=MEMORY_RULES,
        weights=_weights(files, config.quantization),
        files=tuple(
            File(name=file.name, role="weights" if file in files else _role(file.name), bytes=file.stat().st_size)
            for file in sorted(directory.iterdir())
            if file.is_file()
        ),
        problems=tuple(problems),
    )


# --- the model, counted ---------------------------------------------------------------------------------------------


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
    learnt = {name: p.numel() for name, p in model.named_parameters() if ".layer_scalars." not in name}
    text = sum(learnt.values())
    experts = sum(count for name, count in learnt.items() if ".experts." in name)
    vision = sum(math.prod(shape) for name, shape in vision_tensors(config).items() if not is_buffer(name))
    idle = experts // config.num_experts * (config.num_experts - config.top_k_experts)
    return Parameters(total=text + vision, text=text, vision=vision, active=text - idle)


def _memory(config: Config, model: "DiffusionGemma") -> Iterator[Memory]:
    for precision in PRECISIONS:
        weights = sum(weight_bytes(name, p, precision) for name, p in model.named_parameters())
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


def precision_of(quantization: str) -> str:
    """What MEMORY_RULES calls it; with -layers behind it if it is so there."""
    kind = "fp8" if quantization.removesuffix(LAYERS) == "fp8" else "4-bit"
    return kind + LAYERS * quantization.endswith(LAYERS)


def weight_bytes(name: str, tensor: "Tensor", precision: str, value_bytes: int = 2) -> int:
    """MEMORY_RULES, as arithmetic. With -layers behind the precision the embeddings are not packed; `value_bytes` are
    those of a number that is not, 2 in bf16."""
    from gesso.checkpoint.quantize.formats import format_of, is_expert

    kind, layers = precision.removesuffix(LAYERS), precision.endswith(LAYERS)
    if kind == "bf16" or format_of(name, tensor.shape, "fp8" + LAYERS * layers) is None:
        return value_bytes * tensor.numel()
    if kind == "fp8" or not is_expert(name):
        return tensor.numel() + 4 * math.prod(tensor.shape[:-1])
    return math.ceil(tensor.numel() * 4.5 / 8)


def cache_bytes(config: Config, context: int) -> int:
    import torch

    from gesso.model.cache import KVCache

    return KVCache(config, 1, context, torch.device("meta"), torch.bfloat16).nbytes


# --- the directory --------------------------------------------------------------------------------------------------


def _examine(directory: Path, config: Config) -> tuple[list[Path], list[str]]:
    """Return the weight files and everything that would keep the model from loading or answering.

    A directory without weights is not a fault.
    """
    files, problems = [], []
    try:
        files = checkpoint.weight_files(directory)
        if files:
            problems += checkpoint.problems(directory, config)
    except CheckpointError as error:
        problems.append(str(error))
    for examine in (_examine_tokenizer, GenerationDefaults.from_directory):
        try:
            examine(directory, config)
        except (CheckpointError, InputError) as error:
            problems.append(str(error))
    return files, problems


def _examine_tokenizer(directory: Path, config: Config) -> None:
    """Load the tokenizer and render a short conversation with its template."""
    from gesso.chat.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory / 'tokenizer.json'} has {tokenizer.vocab_size:,} tokens, the model has embeddings for "
            f"{config.vocab_size:,}: use files of one checkpoint"
        )
    tokenizer.render([{"role": "user", "content": "Hello"}])


def _weights(files: list[Path], quantization: str | None) -> Weights:
    values: Counter[str] = Counter()
    vision = False
    for file in files:
        try:
            with checkpoint.opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict: it has no iterator)
                    part = tensors.get_slice(name)
                    values[part.get_dtype()] += math.prod(part.get_shape())
                    vision |= is_vision(name)
        except CheckpointError:
            continue  # missing or damaged: among the problems already
    return Weights(files=len(files), values_by_dtype=dict(values), vision=vision, quantization=quantization)


def _role(name: str) -> str:
    if name == checkpoint.INDEX:
        return "weights"
    for role, names in (("config", _CONFIG_FILES), ("tokenizer", _TOKENIZER_FILES), ("chat template", _TEMPLATE_FILES)):
        if name in names:
            return role
    return "other"


# --- for people -----------------------------------------------------------------------------------------------------


def render(report: Report, console: Console) -> None:
    def section(title: str, body: Table) -> None:
        console.print(Text(f"\n{title}", style="bold"))
        console.print(body)

    console.print(Text(printable(report.name), style="bold"))
    console.print(Text(printable(report.path), style="dim", overflow="fold"))
    section("Architecture", pairs(_architecture_rows(report.architecture)))
    section("Parameters", pairs(_parameter_rows(report.parameters)))
    section(f"Memory ({_memory_unit(report.memory)[0]})", _memory_table(report))
    for rule in report.memory_rules:
        console.print(Text(rule, style="dim"))
    section("Files", _file_table(report))
    console.print(Text(_stored(report.weights)))
    console.print()
    if report.problems:
        console.print(Text("Would not load", style="bold red"))
        console.print(pairs([("-", problem) for problem in report.problems]))
    elif report.weights.files:
        console.print(Text("Nothing found that would keep it from loading.", style="green"))


def _architecture_rows(a: Architecture) -> Iterator[tuple[str, str]]:
    yield "layers", f"{a.layers}: {a.sliding_layers} sliding, {a.global_layers} global"
    for shape in a.attention:
        window = f", window {a.window:,}" if shape.kind == "sliding" else ""
        heads = f"{shape.query_heads} query and {shape.kv_heads} key/value heads of {shape.head_dim}"
        yield f"  {shape.kind}, {shape.layers}", f"{heads}{window}"
    yield "hidden", f"{a.hidden_size:,}"
    yield "MLP", f"width {a.mlp_width:,}"
    yield "experts", f"{a.experts} of width {a.expert_width:,}, {a.active_experts} active per token"
    yield "vocabulary", f"{a.vocabulary:,}"
    yield "context", f"{a.context:,} tokens"
    yield "canvas", f"{a.canvas:,} tokens"


def _parameter_rows(p: Parameters) -> Iterator[tuple[str, str]]:
    counts = {"total": p.total, "text": p.text, "vision tower": p.vision, "active per token": p.active}
    for label, count in counts.items():
        yield label, f"{count:,} ({short(count)})"


def _memory_unit(memory: tuple[Memory, ...]) -> tuple[str, float]:
    largest = max(cell.total_bytes or cell.weight_bytes for cell in memory)
    return ("GB, 10^9 bytes", 1e9) if largest >= 1e9 else ("MB, 10^6 bytes", 1e6)


def _memory_table(report: Report) -> Table:
    """Weights by precision, and their sum with the cache by context; the cache has a row, being the same for all."""
    _, unit = _memory_unit(report.memory)

    def amount(size: int | None) -> str:
        return "beyond" if size is None else f"{size / unit:,.2f}"

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("", "weights", *(f"at {context // 1024}K tokens" for context in CONTEXTS)):
        table.add_column(column, justify="right" if column else "left")
    for precision in PRECISIONS:
        cells = [cell for cell in report.memory if cell.precision == precision]
        table.add_row(precision, amount(cells[0].weight_bytes), *(amount(cell.total_bytes) for cell in cells))
    table.add_row("of this, cache", "", *(amount(cell.cache_bytes) for cell in cells))
    if any(cell.beyond_context for cell in cells):
        table.caption = f"beyond: more than the model's context of {report.architecture.context:,} tokens"
        table.caption_justify = "left"
    return table


def _file_table(report: Report) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(overflow="fold")
    table.add_column()
    table.add_column(justify="right")
    for file in report.files:
        table.add_row(Text(printable(file.name)), file.role, short(file.bytes, (" GB", " MB", " kB", " B")))
    return table


def _stored(weights: Weights) -> str:
    if not weights.files:
        return "No weights here."
    dtypes = ", ".join(f"{dtype} ({short(count)} values)" for dtype, count in weights.values_by_dtype.items())
    if weights.quantization:
        dtypes += f"; packed: {weights.quantization}"
    return f"Stored as {dtypes or 'nothing readable'}, {'with' if weights.vision else 'without'} the vision tower."


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    for label, value in rows:
        # Names come out of files: a bracket in them is no markup, an escape sequence no command.
        table.add_row(Text(label), Text(printable(value)))
    return table


def short(count: int, units: tuple[str, str, str, str] = (" B", " M", " K", "")) -> str:
    for unit, size in zip(units, (1e9, 1e6, 1e3), strict=False):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return f"{count}{units[-1]}"

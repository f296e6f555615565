"""The reports of `gesso info` as tables on a terminal."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gesso.checkpoint.stored import FLOATS
from gesso.info.formats import rounded
from gesso.info.precisions import CONTEXTS
from gesso.memory.units import gigabytes, short
from gesso.printable import printable

if TYPE_CHECKING:
    from gesso.info.fit import CardPlan
    from gesso.info.report import Architecture, Memory, ModelReport, Parameters, Weights


CPU_NOTE = "read per token: token by token; without --write, gesso measures whether canvases are faster"


def _title(console: Console, title: str) -> None:
    console.print(Text(f"\n{title}", style="bold"))


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    for label, value in rows:
        # Values come from files: brackets must not be read as markup, nor escape sequences by the terminal.
        table.add_row(Text(label), Text(printable(value)))
    return table


def _columns(*heads: str, caption: str | None = None) -> Table:
    """Return a table whose first column is left-aligned and whose others are right-aligned."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", caption=caption)
    table.caption_justify = "left"
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left")
    return table


# --- a checkpoint ---------------------------------------------------------------------------------------------------


def render_report(report: "ModelReport", console: Console) -> None:
    console.print(Text(printable(report.name), style="bold"))
    where = printable(report.path) if report.path else "the published shape; no file was read or downloaded"
    console.print(Text(where, style="dim", overflow="fold"))
    _title(console, "Architecture")
    console.print(_pairs(_architecture_rows(report.architecture)))
    _title(console, "Parameters")
    console.print(_pairs(_parameter_rows(report.parameters)))
    unit, size = _memory_unit(report.memory)
    _title(console, f"Memory ({unit})")
    console.print(_memory_table(report, size))
    for rule in report.memory_rules:
        console.print(Text(rule, style="dim"))
    if report.cpu:
        _title(console, f"On a CPU ({unit})")
        console.print(_cpu_table(report, size))
    _title(console, "Files")
    console.print(_file_table(report))
    console.print(Text(_stored(report.weights)))
    if any(row.stored not in FLOATS for row in report.weights.formats):
        console.print(_format_table(report.weights))
    console.print()
    if report.problems:
        console.print(Text("Would not load", style="bold red"))
        console.print(_pairs([("-", problem) for problem in report.problems]))
    elif report.weights.files:
        console.print(Text("No problem found that would prevent loading.", style="green"))


def _architecture_rows(a: "Architecture") -> Iterator[tuple[str, str]]:
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


def _parameter_rows(p: "Parameters") -> Iterator[tuple[str, str]]:
    counts = {"total": p.total, "text": p.text, "vision tower": p.vision, "active per token": p.active}
    for label, count in counts.items():
        yield label, f"{count:,} ({short(count)})"


def _memory_unit(memory: "tuple[Memory, ...]") -> tuple[str, float]:
    largest = max(cell.total_bytes or cell.weight_bytes for cell in memory)
    return ("GB, 10^9 bytes", 1e9) if largest >= 1e9 else ("MB, 10^6 bytes", 1e6)


def _memory_table(report: "ModelReport", unit: float) -> Table:
    """Return a table by precision: weights, and weights and cache together for each context; the cache alone."""

    def amount(size: int | None) -> str:
        return "beyond" if size is None else f"{size / unit:,.2f}"

    table = _columns("", "weights", *(f"at {context // 1024}K tokens" for context in CONTEXTS))
    for precision in dict.fromkeys(cell.precision for cell in report.memory):
        cells = [cell for cell in report.memory if cell.precision == precision]
        table.add_row(precision, amount(cells[0].weight_bytes), *(amount(cell.total_bytes) for cell in cells))
    table.add_row("of this, cache", "", *(amount(cell.cache_bytes) for cell in cells))
    if any(cell.beyond_context for cell in cells):
        table.caption = f"beyond: more than the model's context of {report.architecture.context:,} tokens"
    return table


def _cpu_table(report: "ModelReport", unit: float) -> Table:
    """Return a table by `--quantize`. A large model is measured when it is loaded, to choose how it writes."""
    context = f"{report.cpu[0].context:,} tokens"
    table = _columns("--quantize", "weights", f"in all, for {context}", "read per token", caption=CPU_NOTE)
    for row in report.cpu:
        table.add_row(row.quantize, *(f"{n / unit:,.2f}" for n in (row.weight_bytes, row.total_bytes, row.token_bytes)))
    return table


def _file_table(report: "ModelReport") -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(overflow="fold")
    table.add_column()
    table.add_column(justify="right")
    for file in report.files:
        table.add_row(Text(printable(file.name)), file.role, gigabytes(file.bytes))
    return table


def _stored(weights: "Weights") -> str:
    if not weights.files:
        return "No weights here."
    dtypes = ", ".join(f"{dtype} ({short(count)} values)" for dtype, count in weights.values_by_dtype.items())
    if weights.quantization:
        dtypes += f"; packed: {weights.quantization}"
    return f"Stored as {dtypes or 'nothing readable'}, {'with' if weights.vision else 'without'} the vision tower."


def _format_table(weights: "Weights") -> Table:
    """Return what each kind of matrix is stored as and becomes on a GPU. A CPU computes with the stored values."""
    table = _columns("", "matrices", "values", "stored as", "on a GPU", "error")
    for row in weights.formats:
        error = f"{100 * row.error:.2g} %" if row.error else ""
        table.add_row(row.kind, str(row.matrices), short(row.values), row.stored, row.on_gpu, error)
    if rounded(weights.formats):
        table.caption = "error: of the values on a GPU against the stored ones, by root mean square"
    return table


# --- a plan for a card ----------------------------------------------------------------------------------------------


def render_plan(plan: "CardPlan", console: Console) -> None:
    _title(console, f"On the {plan.card.title}")
    console.print(_pairs(_card_rows(plan)))
    _title(console, "What fits")
    console.print(_fit_table(plan))
    if any(fit.streamed for fit in plan.fits):
        _title(console, "With experts streamed from host memory, where a precision does not fit")
        console.print(_stream_table(plan))
    _title(console, f"Choose {plan.choice}" if plan.choice else "Does not fit")
    console.print(Text(plan.reason))
    if chosen := plan.chosen():
        console.print(Text(f"The largest context that fits at {plan.choice}: {chosen.largest_context:,} tokens."))
        _title(
            console,
            f"Floor of a step, {plan.context:,} tokens cached; ceiling of tokens/s at {plan.steps} steps per canvas",
        )
        console.print(_time_table(plan))
    for rule in plan.rules:
        console.print(Text(rule, style="dim"))


def _card_rows(plan: "CardPlan") -> Iterator[tuple[str, str]]:
    card = plan.card
    yield "memory", f"{card.memory_gb:g} GB as sold; usable: {gigabytes(plan.usable_bytes)} of 10^9 bytes"
    yield "bandwidth", f"{card.bandwidth_gbs:,.0f} GB/s"
    rates = {"bf16": card.bf16_tflops, "fp8": card.fp8_tflops, "fp4": card.fp4_tflops}
    yield "dense TFLOP/s", ", ".join(f"{name} {f'{rate:,g}' if rate else 'none'}" for name, rate in rates.items())
    if card.pcie and card.pcie_gbs:
        yield "PCIe", f"{card.pcie[0]}.0, {card.pcie[1]} lanes: {card.pcie_gbs:.1f} GB/s for copies"
    yield "source", card.source
    if card.note:
        yield "note", card.note
    if plan.kernels:
        tiles = "; ".join(f"{family}: {shown}" for family, shown in plan.kernels.items())
        yield "kernels", f"rows × columns of a tile, at one canvas, not measured on most cards. {tiles}"


def _fit_table(plan: "CardPlan") -> Table:
    contexts = [room.context for room in plan.fits[0].rooms]
    names = [f"{context // 1024}K" if context % 1024 == 0 else f"{context:,}" for context in contexts]
    caption = "x 8K: sequences of that many tokens that fit at once; context: the longest for one alone"
    table = _columns("", "weights", "left for cache", *(f"x {name}" for name in names), "context", caption=caption)
    for fit in plan.fits:
        left = gigabytes(fit.free_bytes) if not fit.missing_bytes else f"{gigabytes(fit.missing_bytes)} short"
        counts = [f"{room.sequences:,}" for room in fit.rooms]
        table.add_row(fit.precision, gigabytes(fit.weight_bytes), left, *counts, f"{fit.largest_context:,}")
    sizes = [gigabytes(room.sequence_bytes) for room in plan.fits[0].rooms]
    table.add_row("a sequence", "", "", *sizes, "")
    return table


def _stream_table(plan: "CardPlan") -> Table:
    table = _columns("", "layers streamed", "host memory, copied per step", "copy, ms", "tokens/s")
    for fit in plan.fits:
        if fit.streamed and fit.floors:
            size, floor = gigabytes(fit.streamed.host_bytes), fit.floors[0]
            times = f"{floor.copy_seconds * 1e3:,.0f}", f"{floor.tokens_per_second:,.0f}"
            table.add_row(fit.precision, str(fit.streamed.layers), size, *times)
    return table


def _time_table(plan: "CardPlan") -> Table:
    table = _columns(
        "", "batch", "experts", "bytes", "operations", "step, ms", "limit", "tokens/s",
        caption="experts: the expected share that a step reads",
    )  # fmt: skip
    for fit in plan.fits:
        for floor in fit.floors:
            table.add_row(
                fit.precision,
                f"{floor.batch}",
                f"{floor.expert_share:.0%}",
                gigabytes(floor.bytes),
                f"{floor.operations / 1e12:.3g} T",
                f"{floor.seconds * 1e3:.3g}" if floor.seconds < 1 else f"{floor.seconds * 1e3:,.0f}",
                floor.limit,
                f"{floor.tokens_per_second:,.0f}",
            )
    return table

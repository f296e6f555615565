"""Write the page on compiled kernels, `docs/internals/compiled-kernels.md`, from the table."""

from collections import defaultdict
from collections.abc import Iterator

from gesso.backends.cuda.families import FAMILIES, Family
from gesso.cards.named import find
from tools.cards.table import COMPILED, ROOT, Row, Table

PAGE = ROOT / "docs" / "internals" / "compiled-kernels.md"
# What runs if a kernel of the family does not.
PLAIN: dict[Family, str] = {
    "attention": "attention of the plain model, one request at a time",
    "products": "products of PyTorch, one request at a time, with weights converted for each product",
    "experts": "products of PyTorch, one expert at a time",
    "vocabulary end": "float32 logits of PyTorch, and the plain sampler",
    "rows": "norms, routing and embeddings as operations of PyTorch",
}
INTRODUCTION = """# Compiled kernels

<!-- Written by `make cards`. -->
`make cards` compiles every kernel for GPUs of eight compute capabilities, without any of them. It records the launches
of a step at 1 and at 8 canvases, of a prompt of 2,048 tokens and of a step with an adapter, for the shape of the 26B in
every precision and for the bundled model. The wrappers choose tilings for the card, as they do when it runs. A kernel
fails if Triton or its assembler reports an error, or if it needs more shared memory than a block of the card has. Plain
operations then take the place of its whole family. They are slower, and passes are not captured.

That a kernel compiles does not prove that it runs well: only an H200 has been [measured](../benchmarks/gpu.md).

`docs/compiled-kernels.json` has the registers, spills, shared memory and asynchronous copies of each.
"""


def render(table: Table) -> str:
    parts = [INTRODUCTION]
    for version in sorted(table.versions, reverse=True):
        parts += [f"## Triton {version}\n", *_version(table, version)]
    return "\n".join(parts)


def _version(table: Table, version: str) -> Iterator[str]:
    results = {card: list(table.rows(version, card)) for card in COMPILED}
    results = {card: rows for card, rows in results.items() if rows}
    missing = [architecture(card) for card in COMPILED if card not in results]
    if missing:
        yield f"Not compiled with this version: {', '.join(missing)}.\n"
    yield _summary(results)
    for card in results:
        for model, families in table.off(version, card).items():
            yield f"{architecture(card)} does not convert FP8: {model} has no kernels for {', '.join(families)}.\n"
    yield from _failing(results)
    yield from _spilling(results)
    yield from _not_pipelined(results)


def _summary(results: dict[str, list[Row]]) -> str:
    lines = [
        "Failing kernels of all kernels that are launched:\n",
        f"| architecture | card | {' | '.join(FAMILIES)} |",
        "|---|---|" + "---|" * len(FAMILIES),
    ]
    for card, rows in results.items():
        cells = []
        for family in FAMILIES:
            kernels = [row for row in rows if row.family == family]
            failing = sum(bool(row.error) for row in kernels)
            cells.append(f"**{failing} of {len(kernels)}**" if failing else f"0 of {len(kernels)}")
        lines.append(f"| {architecture(card)} | `{card}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _failing(results: dict[str, list[Row]]) -> Iterator[str]:
    errors: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for card, rows in results.items():
        for row in rows:
            if row.error:
                errors[architecture(card), row.kernel, row.error].append(row)
    if not errors:
        yield "No kernel fails.\n"
        return
    lines = ["| architecture | failing kernel | models | reason | in its place |", "|---|---|---|---|---|"]
    for (name, kernel, error), rows in errors.items():
        models = ", ".join(dict.fromkeys(model for row in rows for model in row.models))
        reason = error.replace("|", "\\|")
        lines.append(f"| {name} | `{kernel}` | {models} | {reason} | {PLAIN[rows[0].family]} |")
    yield "\n".join(lines) + "\n"


def _spilling(results: dict[str, list[Row]]) -> Iterator[str]:
    spills: dict[str, list[str]] = defaultdict(list)
    for card, rows in results.items():
        for kernel in dict.fromkeys(row.kernel for row in rows):
            frame = max(row.frame for row in rows if row.kernel == kernel)
            if frame:
                spills[kernel].append(f"{architecture(card)} {frame}")
    if spills:
        lines = ["Kernels that spill registers, with the most bytes per thread:\n"]
        lines += [f"- `{kernel}`: {', '.join(cards)}" for kernel, cards in sorted(spills.items())]
        yield "\n".join(lines) + "\n"


def _not_pipelined(results: dict[str, list[Row]]) -> Iterator[str]:
    kernels: dict[str, list[str]] = defaultdict(list)
    for card, rows in results.items():
        compiled = [row for row in rows if row.shared and row.family in ("attention", "products", "experts")]
        names = {row.kernel for row in compiled if not row.error}
        for kernel in sorted(names - {row.kernel for row in compiled if row.copies}):
            kernels[kernel].append(architecture(card))
    if kernels:
        lines = ["Kernels that use shared memory without asynchronous copies:\n"]
        lines += [f"- `{kernel}`: {', '.join(cards)}" for kernel, cards in sorted(kernels.items())]
        yield "\n".join(lines) + "\n"


def architecture(card: str) -> str:
    major, minor = find(card).capability
    return f"sm_{major}{minor}"

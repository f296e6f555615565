"""The table of compiled kernels in `docs/compiled-kernels.json`: results by version of Triton and by card.

A row is the index of the variant, the models that launch it, registers, spilled bytes per thread, shared memory,
asynchronous copies and the error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gesso.backends.cuda.families import FAMILIES, Family

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "compiled-kernels.json"
# One card per compute capability.
COMPILED = ("a100", "rtx-3090", "rtx-4090", "h200", "b200", "dgx-station", "rtx-5090", "dgx-spark")
# The modules whose kernels run, or are replaced by plain operations, together.
MODULES: Mapping[Family, Sequence[str]] = {
    "attention": ("attention", "attention_hopper"),
    "products": ("linear", "shrink", "widen"),
    "experts": ("experts", "experts_four_bit", "experts_int4_hopper", "feed_forward", "feed_forward_hopper"),
    "vocabulary end": ("vocab", "top", "soft", "asked", "within"),
    "rows": ("rows", "embed", "hash", "advance"),
}


@dataclass(frozen=True)
class Row:
    kernel: str
    variant: str
    models: tuple[str, ...]
    registers: int
    frame: int
    shared: int
    copies: str
    error: str

    @property
    def family(self) -> Family:
        return family_of(self.kernel)


def family_of(kernel: str) -> Family:
    module = kernel.partition(".")[0]
    return next(family for family in FAMILIES if module in MODULES[family])


class Table:
    """Results by version of Triton and card, and the hash of each kernel when it was compiled."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.variants: list[list[str]] = list(raw.get("variants", []))
        self.versions: dict[str, dict[str, Any]] = dict(raw.get("versions", {}))

    @classmethod
    def read(cls) -> "Table":
        return cls(json.loads(TABLE.read_text()) if TABLE.exists() else {})

    def rows(self, version: str, card: str) -> Iterator[Row]:
        for variant, models, *numbers, copies, error in self.versions[version]["cards"].get(card, ()):
            kernel, text = self.variants[variant]
            yield Row(kernel, text, tuple(models.split(", ")), *numbers, copies, error)

    def off(self, version: str, card: str) -> dict[str, list[Family]]:
        """Return the families without kernels by model: the card lacks an instruction that they need."""
        return dict(self.versions[version]["off"].get(card, {}))

    def hashes(self, version: str) -> dict[str, str]:
        return dict(self.versions[version]["kernels"])

    def add(self, compiled: Mapping[str, Any]) -> None:
        """Replace the results of a card by those of `tools.cards.compile`."""
        version = self.versions.setdefault(compiled["triton"], {"kernels": {}, "off": {}, "cards": {}})
        places = {tuple(each): place for place, each in enumerate(self.variants)}
        rows = []
        for row in compiled["rows"]:
            name = row["kernel"], row["variant"]
            if name not in places:
                places[name] = len(self.variants)
                self.variants.append(list(name))
            version["kernels"][row["kernel"]] = row["hash"]
            numbers = row["registers"], row["frame"], row["shared"]
            rows.append([places[name], ", ".join(row["models"]), *numbers, row["copies"], row["error"]])
        version["cards"][compiled["card"]] = rows
        version["off"][compiled["card"]] = compiled["off"]

    def write(self) -> None:
        """Write the file with one row per line."""
        self._drop_unused()
        lines = ['{"variants": [', _lines(self.variants), '], "versions": {']
        for version, results in sorted(self.versions.items()):
            kernels = json.dumps(dict(sorted(results["kernels"].items())))
            lines.append(
                f'{json.dumps(version)}: {{"kernels": {kernels}, "off": {json.dumps(results["off"])}, "cards": {{'
            )
            cards = [f"{json.dumps(card)}: [\n{_lines(rows)}\n]" for card, rows in results["cards"].items()]
            lines.append(",\n".join(cards) + "\n}},")
        lines[-1] = lines[-1].removesuffix(",")
        TABLE.write_text("\n".join(lines) + "\n}}\n")

    def _drop_unused(self) -> None:
        cards = [rows for results in self.versions.values() for rows in results["cards"].values()]
        used = sorted({row[0] for rows in cards for row in rows})
        for results in self.versions.values():
            launched = {self.variants[row[0]][0] for rows in results["cards"].values() for row in rows}
            results["kernels"] = {name: hash for name, hash in results["kernels"].items() if name in launched}
        places = {old: new for new, old in enumerate(used)}
        self.variants = [self.variants[old] for old in used]
        for rows in cards:
            for row in rows:
                row[0] = places[row[0]]


def _lines(rows: Sequence[Any]) -> str:
    return ",\n".join(json.dumps(row) for row in rows)

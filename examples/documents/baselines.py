"""Print the scores of repairs without a model, on the items of `gesso eval examples.documents.task:Documents`.

    python -m examples.documents.baselines --count 1000

If the package `json-repair` is installed, it repairs the JSON items, too.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from examples.documents import rules
from examples.documents.structure import KINDS
from examples.documents.task import EXCERPTS, Documents, score
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.estimate import estimate_score

Repair = Callable[[str, str], str]  # kind and text


def nothing(kind: str, text: str) -> str:
    return text


def json_repair() -> Repair | None:
    """Return the repair of the package json-repair, which formats its result anew, or None."""
    try:
        parse = import_module("json_repair").loads
    except ImportError:
        return None

    def repair(kind: str, text: str) -> str:
        indent = 4 if "\n    " in text and '\n  "' not in text and "\n  {" not in text else 2
        return json.dumps(parse(text), indent=indent, ensure_ascii=False)

    return repair


def table(items: Sequence[Item], repairs: Mapping[str, tuple[Repair, Sequence[str]]]) -> str:
    """Return the scores of every repair as a Markdown table, for each kind and for all items."""
    lines = ["| repair | items | " + " | ".join(Documents.scores) + " |", "|---" * (len(Documents.scores) + 2) + "|"]
    for name, (repair, kinds) in repairs.items():
        scored: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for item in items:
            if (kind := item.meta["kind"]) in scored:
                scored[kind].append(score(item, repair(kind, item.meta["damaged"])))
        if len(kinds) > 1:
            scored["all"] = [one for found in scored.values() for one in found]
        for kind, found in scored.items():
            cells = [estimate_score([one[column] for one in found]).shown(100) for column in Documents.scores]
            lines.append(f"| {name} | {len(found)} {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Print the scores of repairs without a model.")
    parser.add_argument("--data", type=Path, default=EXCERPTS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--split", default="test")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    repairs: dict[str, tuple[Repair, Sequence[str]]] = {"nothing": (nothing, KINDS), "rules": (rules.repair, KINDS)}
    if (public := json_repair()) is not None:
        repairs["json-repair"] = (public, ("json",))
    try:
        items = list(Documents(data=(asked.data,)).items(asked.split, asked.count, asked.seed))
    except InputError as error:
        sys.exit(str(error))
    print(table(items, repairs))


if __name__ == "__main__":
    main()

"""Measure steps with adapters beside steps without: requests take random adapters in turn.

    python -m benchmarks.adapters -m random:26b-a4b --quantize int4 --adapters 4 --batches 1,8

The random adapters are LoRA on attention, dense MLP and experts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import add_model_options, add_rules, model_options, parser_of, rules_of, run
from gesso import adapters, loading
from gesso.adapters import LoraSettings
from gesso.adapters.sites import adapter_sites
from gesso.bench.model import RULES, USUAL, check_rules, measure_batch, sizes_in
from gesso.cli.terminal import print_json, print_styled

TARGETS = ("attention", "mlp", "experts")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("adapters", __doc__)
    add_model_options(parser)
    add_rules(parser)
    parser.add_argument("--adapters", type=int, default=1, help="number of adapters")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--batches", metavar="N,N", help="batch sizes")
    parser.add_argument("--prompt", type=int, help="tokens per prompt")
    parser.add_argument("--new", type=int, help="tokens to generate per request")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    asked = parser.parse_args(arguments)
    rules = rules_of(asked)
    check_rules(rules)
    options = model_options(asked)
    device = loading.find_device(options.pop("device"))
    batches, prompt, new, *_ = USUAL[device.type]
    sizes = sizes_in(asked.batches) or batches
    g = loading.load(
        asked.model,
        device=device,
        adapter=None,
        max_batch=max(sizes),
        max_length=None,
        write="canvas",
        **options,
    )
    found = measure(
        g, sizes, asked.prompt or prompt, asked.new or new, adapters=asked.adapters, rank=asked.rank, rules=rules
    )
    print_json(found) if asked.json else print_styled(lambda console: render(found, console))


def measure(
    g: Any, batches: Sequence[int], prompt: int, new: int, *, adapters: int, rank: int, rules: Any = RULES
) -> dict[str, Any]:
    """Return the figures of each batch size without adapters and with them."""
    free = [measure_batch(g, size, prompt, new, rules) for size in batches]
    names = attach_random(g, adapters, rank)
    rows = []
    for row in free:
        adapted = measure_batch(g, row["batch"], prompt, new, rules, names)
        rows.append(row | {f"adapted_{key}": adapted[key] for key in ("ms_per_step", "tokens_per_second")})
    return {"adapters": adapters, "rank": rank, "prompt": prompt, "new": new, "batches": rows}


def attach_random(g: Any, count: int, rank: int) -> list[str]:
    """Attach adapters with random factors to a model, and return their names."""
    names = [f"random-{number}" for number in range(count)]
    for seed, name in enumerate(names):
        adapters.add(g.model, LoraSettings(rank=rank, targets=TARGETS), name, seed=seed)
        with torch.no_grad():
            for site in set(adapter_sites(g.model).values()):
                if (lora := site.get(name)) is not None:
                    lora.requires_grad_(False)
                    lora.B.normal_(std=0.01)
        g.engine.add_adapter(name)
    adapters.activate(g.model, None)
    return names


def render(found: dict[str, Any], console: Console) -> None:
    console.print(f"with {found['adapters']} adapters of rank {found['rank']}, which the requests take in turn:")
    table = Table("batch", "ms per step", "without", "slower by")
    for row in found["batches"]:
        adapted, free = row["adapted_ms_per_step"], row["ms_per_step"]
        table.add_row(str(row["batch"]), f"{adapted:.2f}", f"{free:.2f}", f"{adapted / free - 1:.1%}")
    console.print(table)


if __name__ == "__main__":
    run(main)

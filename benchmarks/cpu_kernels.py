"""Measure the CPU kernels at the size of the real model: products, and whole layers token by token and in canvases.

    python -m benchmarks.cpu_kernels

Weights are random codes, and there are more of them than fit into a cache. Times are the best of a few repetitions:
other processes only make them longer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.arguments import parser_of, run
from gesso.backends import cpu
from gesso.backends.base import Piece
from gesso.checkpoint import random_weights
from gesso.checkpoint.quantize.formats import FORMATS, is_expert
from gesso.checkpoint.quantize.packed import Packed
from gesso.cli.terminal import print_json
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

ROWS = (1, 4, 16, 64, 256)
INPUTS, OUTPUTS = 2816, 4096
COLD = 2 * 10**8  # bytes: several times the cache of a server
REPETITIONS = 3
LAYERS = ("sliding_attention",) * 5 + ("full_attention",)
VOCABULARY = 1024  # the head is not part of a layer
TOKENS = 16  # of the measurement token by token


def main(arguments: Sequence[str] | None = None) -> None:
    parser_of("cpu_kernels", __doc__).parse_args(arguments)
    print_json(measure())


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    format: str
    rows: int
    milliseconds: float
    gigabytes_per_second: float  # of packed weights
    gigaoperations_per_second: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(**changes: Any) -> dict[str, Any]:
    """Measure at the size of the 26B. Tests pass `changes` to its text_config."""
    if not cpu.is_installed():
        raise InputError("measuring kernels on a CPU needs numba; pip install 'gesso-lm[cpu]'")
    rows = [*_products(), *_layers(changes)]
    return {
        "threads": torch.get_num_threads(),
        "read_gigabytes_per_second": round(_bandwidth(), 1),
        "rows": [row.to_dict() for row in rows],
    }


def _bandwidth() -> float:
    """Return the speed at which all threads read memory."""
    block = torch.ones(COLD // 4)
    return block.nbytes / _best(lambda: block.sum()) / 1e9


def _best(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


# --- products ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _products() -> list[Row]:
    from gesso.backends.cpu.products import PackedMatrix

    found = []
    for format in ("int4", "int8", "float32"):
        one = torch.ones(OUTPUTS, INPUTS) if format == "float32" else random_codes(format)
        size = one.nbytes if isinstance(one, Tensor) else sum(tensor.nbytes for tensor in one.tensors.values())
        copies = -(-COLD // size)
        products: list[Callable[[Tensor], Tensor]] = []
        for _ in range(copies):
            if isinstance(one, Tensor):
                products.append(_dense(one.clone()))
            else:
                products.append(PackedMatrix.of(random_codes(format)))
        for rows in ROWS:
            x_TI = torch.randn(rows, INPUTS)
            some = products if rows < 16 else products[: max(2, copies * 16 // rows)]
            seconds = _best(lambda: [product(x_TI) for product in some]) / len(some)  # noqa: B023
            found.append(_row(f"{INPUTS} -> {OUTPUTS}", format, rows, seconds, size, rows * INPUTS * OUTPUTS))
    return found


def _dense(weight_OI: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x_TI: F.linear(x_TI, weight_OI)


def _row(what: str, format: str, rows: int, seconds: float, size: float, products: float) -> Row:
    return Row(
        what=what,
        format=format,
        rows=rows,
        milliseconds=round(seconds * 1e3, 3),
        gigabytes_per_second=round(size / seconds / 1e9, 1),
        gigaoperations_per_second=round(2 * products / seconds / 1e9),
    )


def random_codes(format: str) -> Packed:
    """Return a packed matrix of random codes. Quantizing random values would take minutes."""
    draw, shape = FORMATS[format].draw, (OUTPUTS, INPUTS)
    assert draw is not None
    return FORMATS[format].packed(shape, draw(shape, torch.Generator().manual_seed(0)))


# --- layers -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _layers(changes: dict[str, Any]) -> list[Row]:
    """Measure layers of int4: one token at a time, and texts."""
    changes = {"num_hidden_layers": len(LAYERS), "layer_types": list(LAYERS), "vocab_size": VOCABULARY, **changes}
    config = random_weights.config_of("26b-a4b", **changes)
    backend = cpu.CpuBackend(
        random_weights.make(config, torch.device("cpu"), torch.float32, "int4", on_cpu=True).eval()
    )
    fixed, experts = _weights(backend.model)
    share = config.top_k_experts / config.num_experts
    found = []
    for rows in ROWS:
        seconds = _text(backend, rows) / len(LAYERS)
        read = 1 - (1 - share) ** rows  # of the experts, if each is as likely as any other
        size = sum(bytes for bytes, _ in fixed) + read * sum(bytes for bytes, _ in experts)
        products = rows * (sum(count for _, count in fixed) + share * sum(count for _, count in experts))
        layer = size / len(LAYERS), products / len(LAYERS)
        found.append(_row("layer", "int4", rows, seconds, *layer))
    return found


def _text(backend: cpu.CpuBackend, rows: int) -> float:
    """Return the seconds for a text of this many tokens, or for a token of a text that is read one by one."""
    count = TOKENS if rows == 1 else 1
    draw = torch.Generator().manual_seed(0)
    pieces = [Piece(0, torch.randint(VOCABULARY, (rows,), generator=draw), causal=True) for _ in range(count)]
    cache = backend.model.new_cache(1, max(ROWS) + TOKENS)

    def run() -> None:
        cache.cut(0, 0)
        for piece in pieces:
            backend.run([piece], cache)

    return _best(run) / count


def _weights(model: DiffusionGemma) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return bytes and number of values of all packed matrices in layers: those that every token uses, and experts."""
    fixed: list[tuple[int, int]] = []
    experts: list[tuple[int, int]] = []
    for name, module in model.decoder.layers.named_modules():
        if isinstance(module, Packed):
            found = sum(tensor.nbytes for tensor in module.tensors.values()), torch.Size(module.shape).numel()
            (experts if is_expert(name) else fixed).append(found)
    return fixed, experts


if __name__ == "__main__":
    run(main)

"""Measure every kernel at the size of the real model: its error against the plain version, and its time.

    python -m benchmarks.kernels                 # on a GPU: every kernel in every tiling
    python -m benchmarks.kernels --only fp8      # those whose name contains this

Each kernel runs in many tilings, because only measurement shows the fastest. Several processes compile the kernels
before anything is timed. The timed unit is a CUDA graph of calls with different weights, so that no weights are in the
cache.
"""

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.arguments import parser_of, run
from benchmarks.cases import COPIES, Case, Shape, add_norms, back, join, product, route, up
from gesso.backends.cuda.kernels import experts, experts_four_bit, linear
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT
from gesso.backends.cuda.kernels.linear import BLOCK, FP8, Tiling
from gesso.cli.terminal import print_json
from gesso.errors import InputError


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("kernels", __doc__)
    parser.add_argument("--only", help="kernels whose name contains this")
    asked = parser.parse_args(arguments)
    print_json([row.to_dict() for row in best(measure(asked.only))])


@dataclass(frozen=True, kw_only=True)
class Row:
    kernel: str
    tiling: Tiling | None
    microseconds: float
    floor_microseconds: float
    error: float  # of the whole result, relative

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# --- candidates -------------------------------------------------------------------------------------------------------

Build = Callable[[Shape], Case]


@dataclass(frozen=True)
class Candidate:
    """A kernel and the tilings to try. `form(tiling)` is stored in `table[key]`, where the kernel looks it up."""

    build: Build
    tilings: tuple[Tiling, ...] = ()
    table: dict[Any, Any] = field(default_factory=dict)
    key: Any = None
    form: Callable[[Tiling], Any] = staticmethod(lambda tiling: tiling)


def _always(tiling: Tiling) -> Any:
    """Use a tiling for any number of tokens."""
    return ((linear.MANY, tiling),)


def _from_none(tiling: Tiling) -> Any:
    """Use a tiling for any number of programs."""
    return ((0, tiling),)


def candidates() -> dict[str, Candidate]:
    def tilings(*choices: tuple[int, ...]) -> tuple[Tiling, ...]:
        return tuple(Tiling(*chosen) for chosen in itertools.product(*choices))

    found = {
        "route": Candidate(route),
        "add norms": Candidate(add_norms),
        "join": Candidate(join),
    }
    for precision, key, deep in (("bf16", torch.bfloat16, (64, 128)), ("fp8", FP8, (128, 256))):
        up_, back_ = partial(up, precision=precision), partial(back, precision=precision)
        wide = (BLOCK,) if precision == "fp8" else (32, 64)
        found[f"up {precision}"] = Candidate(
            up_, tilings((16, 32), wide, deep, (4, 8), (3, 4)), experts.UP, key, _always
        )
        found[f"down {precision}"] = Candidate(
            back_, tilings((16, 32), (64, 128, 256), (64,), (4, 8), (3, 5, 7)), experts.DOWN, key, _always
        )
        for name, inputs, outputs in (
            ("qkv", 2816, 8192),
            ("q", 2816, 4096),
            ("o", 4096, 2816),
            ("mlp down", 2112, 2816),
        ):
            steps = (64, 128) if inputs % 128 == 0 else (64,)
            found[f"{name} {precision}"] = Candidate(
                partial(product, precision=precision, inputs=inputs, outputs=outputs),
                tilings((64, 128), (32, 64, 128), steps, (4, 8), (3, 4)), linear.PLAIN, key, _from_none,
            )  # fmt: skip
        found[f"gated {precision}"] = Candidate(
            partial(product, precision=precision, inputs=2816, outputs=2112, gated=True),
            tilings((64, 128), (32, 64), (64, 128), (4, 8), (3,)), linear.GATED, key, _from_none,
        )  # fmt: skip
    for precision in FOUR_BIT:
        up_, back_ = partial(up, precision=precision), partial(back, precision=precision)
        table = experts_four_bit.TILINGS
        found[f"up {precision}"] = Candidate(
            up_, tilings((32, 64), (64,), (32, 64), (4, 8), (3, 4)), table, ("up", precision), _always
        )
        found[f"down {precision}"] = Candidate(
            back_, tilings((32, 64), (64, 128), (32,), (4, 8), (3, 4)), table, ("down", precision), _always
        )
    # As in a GGUF file: the rows between the products are quantized by the first one.
    found["up uint4 for down fp8"] = replace(found["up uint4"], build=partial(up, precision="uint4", then="fp8"))
    return found


# --- measuring --------------------------------------------------------------------------------------------------------

Work = tuple[str, Tiling | None]


def measure(only: str | None = None, tokens: int = 256, processes: int = 12) -> list[Row]:
    """Measure all kernels whose name contains `only`, in every tiling that fits the GPU."""
    if not torch.cuda.is_available():
        raise InputError("measuring kernels needs an NVIDIA GPU; none was found")
    chosen = {name: candidate for name, candidate in candidates().items() if not only or only in name}
    work: list[Work] = [(name, tiling) for name, c in chosen.items() for tiling in (c.tilings or (None,))]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_warm, work, chunksize=1)
    found = []
    for name, candidate in chosen.items():
        torch.manual_seed(0)
        case = candidate.build(Shape(tokens=tokens))
        expected = case.plain().float()
        for tiling in candidate.tilings or (None,):
            with _tiled(candidate, tiling):
                if row := _time(name, tiling, case, expected):
                    found.append(row)
    return found


def _warm(work: Work) -> None:
    """Compile a kernel. Tilings that do not fit the GPU fail here, and again when they are timed."""
    name, tiling = work
    candidate = candidates()[name]
    with _tiled(candidate, tiling), suppress(Exception):
        candidate.build(Shape(tokens=32, experts=2, k=2)).call(0)  # Triton would compile k = 1 as a constant
        torch.cuda.synchronize()


@contextmanager
def _tiled(candidate: Candidate, tiling: Tiling | None) -> Iterator[None]:
    before = dict(candidate.table)
    if tiling:
        candidate.table[candidate.key] = candidate.form(tiling)
    try:
        yield
    finally:
        candidate.table.update(before)


def _time(name: str, tiling: Tiling | None, case: Case, expected: Tensor) -> Row | None:
    try:
        first = case.wide(case.call(0)).float()
    except Exception as problem:  # usually too large for shared memory or registers
        print(f"{name} {tiling}: {str(problem)[:100]}", file=sys.stderr)
        return None
    graph = torch.cuda.CUDAGraph()
    for i in range(COPIES):
        case.call(i)
    with torch.cuda.graph(graph):
        for i in range(COPIES):
            case.call(i)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(5):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return Row(
        kernel=name,
        tiling=tiling,
        microseconds=start.elapsed_time(end) * 1e3 / 5 / COPIES,
        floor_microseconds=case.floor * 1e6,
        error=((first - expected).norm() / expected.norm()).item(),
    )


def best(found: list[Row]) -> list[Row]:
    """Return the fastest tiling of each kernel."""
    fastest: dict[str, Row] = {}
    for row in found:
        if row.kernel not in fastest or row.microseconds < fastest[row.kernel].microseconds:
            fastest[row.kernel] = row
    return list(fastest.values())


if __name__ == "__main__":
    run(main)

"""Run a module with the plain Triton kernels in place of those for Hopper, to compare whole steps:

    python -m tests.gpu.without feed_forward attention -- benchmarks.step -m random:26b-a4b --quantize fp8
    python -m tests.gpu.without feed_forward attention -- gesso bench -m random:26b-a4b --quantize fp8 --json

Compare runs in turns on one machine: clocks and temperatures drift.
"""

import runpy
import sys
from collections.abc import Callable

from gesso.backends.cuda.kernels import attention_tiles, experts_four_bit, feed_forward


def without_feed_forward() -> None:
    feed_forward._has_kernel = lambda _: False


def without_attention() -> None:
    attention_tiles._has_roles = lambda _: False


def without_int4() -> None:
    experts_four_bit.LEAST_FOR_HOPPER = sys.maxsize


KERNELS: dict[str, Callable[[], None]] = {
    "feed_forward": without_feed_forward,
    "attention": without_attention,
    "int4": without_int4,
}


if __name__ == "__main__":
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    names, command = sys.argv[1:split], sys.argv[split + 1 :]
    if not command or not set(names) <= KERNELS.keys():
        sys.exit(f"give kernels ({', '.join(KERNELS)}), then -- and a module with its arguments")
    for name in names:
        KERNELS[name]()
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)

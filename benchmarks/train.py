"""Measure training steps on random weights.

    python -m benchmarks.train                               # gesso-mini from scratch
    python -m benchmarks.train --shape 26b-a4b --quantize int4 --targets attention,mlp --rank 16

Prints one JSON object: tokens per second, model FLOPs utilization (MFU) and memory. `gesso train` prints the speed of a
run on your own data.
"""

import argparse
import json
import os

from benchmarks.arguments import parser_of, run
from gesso.memory.allocator import allocator_settings
from gesso.memory.device import SHARE


def main() -> None:
    asked = _arguments()
    os.environ.update(allocator_settings(os.environ))  # before torch is imported
    from benchmarks import training
    from gesso.loading import find_device
    from gesso.memory.device import memory_of
    from gesso.train.memory import explained

    device = find_device(asked.device)
    shape = training.shape_of(
        asked.shape,
        quantize=asked.quantize,
        rank=asked.rank,
        targets=None if asked.targets is None else asked.targets.split(","),
        examples=asked.batch,
        prompt=asked.prompt,
        response=asked.new,
    )
    memory = memory_of(device).budget(asked.memory)
    with explained():
        found = training.measure(asked.shape, shape, asked.steps, device, memory, compiled=asked.compile)
    print(json.dumps(found))


def _arguments() -> argparse.Namespace:
    parser = parser_of("train", __doc__)
    parser.add_argument("--shape", default="mini", help="mini (from scratch, the default) or 26b-a4b (LoRA)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps, rounded up to an even number")
    parser.add_argument("--batch", type=int, help="examples per step")
    parser.add_argument("--prompt", type=int, help="tokens of an example before its response")
    parser.add_argument("--new", type=int, help="tokens of a response")
    parser.add_argument("--quantize", help="format of the frozen weights")
    parser.add_argument("--rank", type=int, help="of the adapter; default: 16")
    parser.add_argument("--targets", metavar="GROUP,GROUP", help="weights with an adapter")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--device", help="cpu or cuda; default: a GPU if there is one")
    parser.add_argument("--memory", default=str(SHARE), help="share of the device's memory, or a size such as 12GB")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

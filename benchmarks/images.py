"""Measure how fast a model sees images: vision passes, prompts with images, and a second question about one.

    python -m benchmarks.images -m random:26b-a4b --quantize fp8

The floor of a vision pass is its operations at the speed that a large matrix product reaches on the same device.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import add_model_options, model_options, parser_of, run
from gesso import loading
from gesso.api import Gesso
from gesso.bench.device import wait
from gesso.cli.terminal import print_json, print_styled
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.images.tokens import image_tokens
from gesso.model.vision_config import VisionConfig
from gesso.settings import Diffusion

SIDES = {70: (7, 10), 280: (14, 20), 1120: (28, 40)}  # soft tokens: rows and columns
TEXT = 64  # tokens of text after the images
SEVERAL = 4  # images in one prompt
RUNS = 5
SIZE = {"cuda": 8192, "cpu": 1024}  # of the matrices whose product gives the speed of the device


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("images", __doc__)
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    asked = parser.parse_args(arguments)
    found = bench(asked.model, **model_options(asked))
    print_json(found) if asked.json else print_styled(lambda console: render(found, console))


def bench(
    name: str | None, *, device: str | None, dtype: str | None, quantize: str | None, memory: float | str,
    threads: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    g = loading.load(
        name,
        device=device,
        dtype=dtype,
        quantize=quantize,
        adapter=None,
        max_batch=1,
        max_length=None,
        memory=memory,
        write="canvas",
        threads=threads,
    )
    return measure(g, SIDES)


def measure(g: Gesso, sides: Mapping[int, tuple[int, int]], runs: int = RUNS) -> dict[str, Any]:
    """Return the times of vision passes of so many soft tokens in rows and columns, and of prompts with the default
    ones."""
    if g.model.vision is None:
        raise InputError("the model has no vision tower; this benchmark needs one, such as that of random:26b-a4b")
    device = g.model.device
    speed = _speed(device, g.model.dtype)
    passes = []
    for count, (rows, columns) in sides.items():
        image = picture(g.config.vision, rows, columns, seed=0)
        ms = _median(lambda image=image: g.engine.runner.backend.see(image), device, runs)  # type: ignore[misc]
        floor = 1e3 * operations(g.config.vision, image.rows * image.columns, g.config.hidden_size) / speed
        passes.append({"tokens": count, "patches": image.rows * image.columns, "ms": ms, "floor_ms": floor,
                       "ratio": ms / floor})  # fmt: skip
    usual = list(sides.values())[len(sides) // 2]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(g.model.dtype).removeprefix("torch."),
        "quantized": g.config.quantization,
        "tflops_of_a_product": speed / 1e12,
        "passes": passes,
        "prompts": _prompts(g, *usual, runs),
    }


def _prompts(g: Gesso, rows: int, columns: int, runs: int) -> dict[str, Any]:
    """Return the milliseconds to the first draft after several images, after one, and of another question about it."""
    device, found = g.model.device, {"tokens": rows * columns}
    several, first, second = [], [], []
    for number in range(runs + 1):
        images = [picture(g.config.vision, rows, columns, SEVERAL * number + i + 1) for i in range(SEVERAL)]
        several.append(_first_draft(g, images, device, number))
        alone = picture(g.config.vision, rows, columns, -number - 1)
        first.append(_first_draft(g, [alone], device, number))
        second.append(_first_draft(g, [alone], device, number + 1))
    # The first of each compiles.
    return found | {
        f"images_{SEVERAL}_ms": statistics.median(several[1:]),
        "image_ms": statistics.median(first[1:]),
        "second_question_ms": statistics.median(second[1:]),
    }


def _first_draft(g: Gesso, images: Sequence[Image], device: torch.device, seed: int) -> float:
    """Return the milliseconds of a prompt with images, a text that depends on the seed, and one step."""
    text = np.random.default_rng(seed).integers(10, min(g.config.vocab_size, 10_000), TEXT).tolist()
    prompt = [0]
    for image in images:
        prompt += [g.config.boi_token_id, *image_tokens(image.digest, image.tokens), g.config.eoi_token_id]
    diffusion = Diffusion(steps=1, stopping="fixed")
    request = Request(prompt=(*prompt, *text), images=tuple(images), max_new_tokens=256, diffusion=diffusion)
    return _timed(lambda: g.run([request]), device)


def picture(vision: VisionConfig, rows: int, columns: int, seed: int) -> Image:
    """Return an image of random pixels with so many soft tokens."""
    side = vision.pooling_kernel_size
    shape = rows * columns * side**2, 3 * vision.patch_size**2
    pixels = np.random.default_rng(abs(2 * seed + (seed < 0))).integers(0, 256, shape, dtype=np.uint8)
    return Image(pixels, rows * side, columns * side, rows * columns)


def operations(vision: VisionConfig, patches: int, hidden: int) -> int:
    """Return the floating-point operations of a vision pass."""
    queries, keys = (heads * vision.head_dim for heads in (vision.num_attention_heads, vision.num_key_value_heads))
    layer = vision.hidden_size * (2 * queries + 2 * keys + 3 * vision.intermediate_size)
    attention = 2 * patches * queries  # scores and values
    projected = vision.hidden_size * hidden // vision.pooling_kernel_size**2
    embedded = 3 * vision.patch_size**2 * vision.hidden_size
    return 2 * patches * (vision.num_hidden_layers * (layer + attention) + embedded + projected)


def _speed(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large product."""
    size = SIZE[device.type]
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (_median(lambda: left @ right, device, RUNS) / 1e3)


def _median(run: Callable[[], object], device: torch.device, runs: int) -> float:
    _timed(run, device)  # warms up
    return statistics.median(_timed(run, device) for _ in range(runs))


def _timed(run: Callable[[], object], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return 1e3 * (time.perf_counter() - start)


def render(found: dict[str, Any], console: Console) -> None:
    table = Table("soft tokens", "patches", "ms", "floor", "ratio", title=f"A vision pass, {found['dtype']}")
    for row in found["passes"]:
        cells = f"{row['tokens']:,}", f"{row['patches']:,}", f"{row['ms']:.1f}", f"{row['floor_ms']:.1f}"
        table.add_row(*cells, f"{row['ratio']:.2f}")
    console.print(table)
    prompts = found["prompts"]
    console.print(
        f"First draft after {SEVERAL} images of {prompts['tokens']} tokens and {TEXT} of text: "
        f"{prompts[f'images_{SEVERAL}_ms']:.0f} ms; after one image: {prompts['image_ms']:.0f} ms; "
        f"of a second question about it: {prompts['second_question_ms']:.0f} ms. "
        f"A large product runs at {found['tflops_of_a_product']:.1f} TFLOP/s."
    )


if __name__ == "__main__":
    run(main)

"""The start of an engine process: choose what fits, load it with progress, and on a GPU warm up and measure."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gesso import loading
from gesso.api import Gesso
from gesso.checkpoint import transfer
from gesso.constraints.guide import Guide
from gesso.engine.engine import Engine
from gesso.engine.request import Request, Score
from gesso.images.image import Image
from gesso.images.tokens import image_tokens
from gesso.loading import find_device, find_dtype, memory_for
from gesso.memory.device import keep_within, peak_bytes, restart_peak
from gesso.memory.workspace import IMAGE_TOKENS
from gesso.serve import auto
from gesso.serve.pipe import Send
from gesso.serve.settings import EngineSettings
from gesso.serve.wire import Loading
from gesso.settings import BY_TOKEN, Diffusion, WriteName

CAPTURE_SECONDS = 6.0  # for captures before the engine is ready
WARM_UP_REGEX = "[0-9]{4}-[a-z]+"  # few words follow some of its states, and many follow others


def start(settings: EngineSettings, send: Send) -> tuple[Gesso, auto.EngineChoice]:
    """Load a model that is ready for requests, and return it with the settings that were chosen for it."""
    choice = choose(settings)
    settings = choice.settings
    keep_within(find_device(settings.device), choice.budget_bytes)
    assert settings.max_batch and settings.max_length and settings.prefill
    model = load(choice, send)
    send(Loading(1.0))  # random weights report no progress
    model.use_adapter(None)  # each request names its own
    model.engine.scheduler.prefill = max(settings.prefill, model.engine.scheduler.piece)
    model.guides.warm_up(searches=True)
    if model.model.device.type == "cuda":
        guide = model.guides.guide(regex=WARM_UP_REGEX)
        restart_peak(model.model.device)
        warm_up(model.engine, settings.max_batch, model.writing.write, guide)
        choice = auto.remeasure(choice, peak_bytes(model.model.device) - model.engine.cache.nbytes)
        model.engine.max_length = choice.settings.max_length or model.engine.max_length
    return model, choice


def choose(settings: EngineSettings) -> auto.EngineChoice:
    device = find_device(settings.device)
    dtype = find_dtype(settings.dtype, device)
    return auto.choose(settings, memory_for(device, dtype), dtype.itemsize)


def load(choice: auto.EngineChoice, send: Send) -> Gesso:
    settings, shown = choice.settings, -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if (percent := 100 * done // max(total, 1)) > shown:
            shown = percent
            send(Loading(percent / 100))

    with transfer.watched(progress):
        return loading.load(
            settings.model,
            device=settings.device,
            dtype=settings.dtype,
            write=settings.write,
            threads=settings.threads,
            cache_dir=settings.cache_dir,
            text_only=settings.text_only,
            quantize=settings.quantize,
            adapter=settings.adapters or None,
            max_batch=settings.max_batch or 1,
            max_length=settings.max_length,
            memory=settings.memory,
            placement=choice.placement,
        )


def warm_up(engine: Engine, max_batch: int, write: WriteName = "canvas", guide: Guide | None = None) -> None:
    """Compile kernels, allocate memory and capture passes, so that no request waits for it. The largest come first.

    `write`: how requests are written that leave it open. `guide`: a constraint to write under.
    """
    canvas, prefill = engine.model.config.canvas_length, engine.scheduler.prefill
    counts = [max_batch, *(count for count in (16, 8, 4, 3, 2, 1) if count < max_batch)]
    if write in BY_TOKEN:
        by_token: dict[str, Any] = {**BY_TOKEN[write], "write": write}
        _run(engine, [[_request(1, seed, 4, **by_token) for seed in range(count)] for count in counts])
    if not _capture(engine, max_batch):  # the backend captures a pass when it recurs
        _run(engine, [[_request(1, seed, canvas) for seed in range(count)] for count in counts])
        _run(engine, [[_request(max(1, min(prefill, engine.max_length - canvas)), 0, canvas)]])
        lengths = [n for bits in range(4, 9) for n in (3 * 2**bits // 4, 2**bits) if n < engine.max_length]
        _run(engine, [[Score(prompt=(0,) * length, texts=((0,),))] for length in lengths for _ in range(2)])
    _run(engine, [[_request(1, 0, canvas)], [_request(1, 0, canvas, top_k=1)]])  # the second reads all logits
    _read_logits(engine)
    if guide is not None:  # operations of corrections, and their stream
        _run(engine, [[replace(_request(1, 0, canvas), guide=guide)]])
    if engine.model.vision is not None:
        _read_image(engine)
    engine.runner.backend.fix_kernels()


def _run(engine: Engine, work: Sequence[Sequence[Request | Score]]) -> None:
    """Run groups of requests, one group after another."""
    for requests in work:
        for each in requests:
            engine.submit(each)
        while engine.busy:
            engine.step()


def _capture(engine: Engine, max_batch: int) -> bool:
    """Capture the passes of a server; return whether the backend has any.

    With a large batch there are many. Those needed least are left for later, when the engine is idle.
    """
    backend = engine.runner.backend
    spent = 0.0
    captured = False
    if engine.runner.captures:
        backend.compile_expected(engine.cache)
    while engine.captures_left and spent < CAPTURE_SECONDS:
        began = time.monotonic()
        before = backend.counts.compilations
        captured = True
        engine.capture_next()
        if backend.counts.compilations == before:  # kernels are compiled now in any case
            spent += time.monotonic() - began
    return captured


@torch.no_grad()
def _read_logits(engine: Engine) -> None:
    """Compute logits as for log-probabilities, scores and constraints."""
    model, backend = engine.model, engine.runner.backend
    hidden_CH = torch.zeros(64, model.config.hidden_size, dtype=model.dtype, device=model.device)
    for count in (64, 32, 20, 1):
        backend.logits(hidden_CH[:count])
        backend.logits_of(hidden_CH, torch.zeros(count, dtype=torch.long, device=model.device))


def _read_image(engine: Engine) -> None:
    """Read a blank image of the largest size that a prompt can have."""
    vision, room = engine.model.config.vision, min(IMAGE_TOKENS, engine.max_length - 3)
    side, most = vision.pooling_kernel_size, vision.position_embedding_size // vision.pooling_kernel_size
    columns = max(1, min(most, math.isqrt(room)))
    rows = max(1, min(most, room // columns))
    patches = np.zeros((rows * columns * side**2, 3 * vision.patch_size**2), np.uint8)
    image = Image(patches, rows * side, columns * side, rows * columns)
    prompt = 0, *image_tokens(image.digest, image.tokens), 0
    diffusion = Diffusion(steps=1, stopping="fixed")
    _run(engine, [[Request(prompt=prompt, images=(image,), max_new_tokens=1, diffusion=diffusion)]])
    engine.runner.seen.held.clear()
    engine.runner.seen.read = 0


def _request(prompt: int, seed: int, new: int, **settings: Any) -> Request:
    """Return a request of three steps: a pass that recurs runs uncaptured, is then captured, and then replayed."""
    diffusion = Diffusion(**{"steps": 3, "stopping": "fixed", **settings})
    return Request(prompt=(0,) * prompt, max_new_tokens=new, diffusion=diffusion, seed=seed)

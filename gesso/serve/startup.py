"""The start of an engine process: choose what fits, load it with progress, and on a GPU warm up and measure."""

from typing import Any

import torch

from gesso import loading
from gesso.api import Gesso
from gesso.checkpoint import transfer
from gesso.engine.engine import Engine
from gesso.engine.request import Request, Score
from gesso.info.device import keep_within
from gesso.info.workspace import CONTEXT_BYTES
from gesso.loading import find_device, find_dtype, memory_for
from gesso.serve import auto
from gesso.serve.pipe import Send
from gesso.serve.protocol import Loading
from gesso.serve.settings import EngineSettings
from gesso.settings import Diffusion


def start(settings: EngineSettings, send: Send) -> tuple[Gesso, auto.Choice]:
    """Load a model that is ready for requests, and return it with the settings that were chosen for it."""
    choice = choose(settings)
    settings = choice.settings
    keep_within(find_device(settings.device), choice.budget_bytes)
    assert settings.max_batch and settings.max_length and settings.prefill
    model = load(choice, send)
    model.use_adapter(None)  # each request names its own
    model.engine.scheduler.prefill = max(settings.prefill, model.engine.scheduler.piece)
    if model.model.device.type == "cuda":
        choice = auto.remeasure(choice, measured_bytes(model.engine, settings.max_batch))
        model.engine.max_length = choice.settings.max_length or model.engine.max_length
    return model, choice


def choose(settings: EngineSettings) -> auto.Choice:
    device = find_device(settings.device)
    dtype = find_dtype(settings.dtype, device)
    return auto.choose(settings, memory_for(device, dtype), dtype.itemsize)


def load(choice: auto.Choice, send: Send) -> Gesso:
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
            decode=settings.decode,
            threads=settings.threads,
            cache_dir=settings.cache_dir,
            quantize=settings.quantize,
            adapter=settings.adapters or None,
            max_batch=settings.max_batch or 1,
            max_length=settings.max_length,
            memory=settings.memory,
            placement=choice.placement,
        )


def warm_up(engine: Engine, max_batch: int) -> None:
    """Run the largest work first, then passes that will recur, to compile kernels, allocate memory and capture graphs.

    Three steps each: a pass runs uncaptured, is then captured as a graph, and then replayed.
    """
    canvas, prefill = engine.model.config.canvas_length, engine.scheduler.prefill

    def request(length: int, seed: int, **settings: Any) -> Request:
        diffusion = Diffusion(steps=3, stopping="fixed", **settings)
        return Request(prompt=(0,) * length, max_new_tokens=canvas, diffusion=diffusion, seed=seed)

    counts = [max_batch, *(count for count in (16, 8, 4, 3, 2, 1) if count < max_batch)]  # kernels differ by size
    work: list[list[Request | Score]] = [[request(1, seed) for seed in range(count)] for count in counts]
    work.append([request(max(1, min(prefill, engine.max_length - canvas)), 0)])
    work.append([request(1, 0, top_k=1)])  # reads all logits
    lengths = [n for bits in range(4, 9) for n in (3 * 2**bits // 4, 2**bits) if n < engine.max_length]
    work += [[Score(prompt=(0,) * length, texts=((0,),))] for length in lengths for _ in range(2)]
    for requests in work:
        for each in requests:
            engine.submit(each)
        while engine.busy:
            engine.step()


def measured_bytes(engine: Engine, max_batch: int) -> int:
    """Return the GPU memory that weights and workspace take, with the CUDA context. This warms up the engine."""
    torch.cuda.empty_cache()  # what remains from loading
    torch.cuda.reset_peak_memory_stats(engine.model.device)
    warm_up(engine, max_batch)
    return torch.cuda.max_memory_reserved(engine.model.device) - engine.cache.nbytes + CONTEXT_BYTES

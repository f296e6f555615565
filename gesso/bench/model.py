"""Measure generation: prefill, step time, tokens per second by batch size, autoregressive decoding, and
memory.

Everything runs through the engine, as requests do. Canvases take a fixed number of steps and no text ends early, so
every run does the same work. The floor is the time to read all weights of a step once, at the memory bandwidth
measured in the same run. If experts stream from host memory, it is at least the time to copy them, at the bandwidth of
such copies in the same run.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gesso import loading
from gesso.bench import large_cpu
from gesso.bench.device import wait
from gesso.bench.requests import requests
from gesso.cards.running import card_of
from gesso.checkpoint.streamed import StreamedExperts, streamed
from gesso.engine.events import Draft
from gesso.engine.writing import LEAST_BYTES
from gesso.errors import InputError
from gesso.eval.plot import Point, Series, svg
from gesso.memory.budget import CONTEXT
from gesso.memory.weights import loaded_bytes
from gesso.model.transformer import DiffusionGemma
from gesso.settings import SETTINGS, WriteName

STEPS = 16
# The rules of the measured canvases, as settings.
RULES: Mapping[str, Any] = {"sampler": SETTINGS["sampler"].default, "stopping": "fixed"}
# Batch sizes, prompt, new tokens, prefills, autoregressive tokens. On a GPU: as peers publish them. On a CPU: a minute.
USUAL = {"cuda": ((1, 2, 4, 8), 1024, 1024, (512, 8192, 32768), 128), "cpu": ((1,), 64, 256, (512,), 16)}

RUNS = {"cuda": 3, "cpu": 1}


def bench(
    name: str | None, *, device: str | None, dtype: str | None, quantize: str | None, memory: float | str,
    batches: str | None, prompt: int | None, new: int | None, threads: int | None = None,
    rules: Mapping[str, Any] = RULES,
) -> dict[str, Any]:  # fmt: skip
    """Measure a model. Missing sizes are those of USUAL for the device."""
    check_rules(rules)
    where = loading.find_device(device)
    usual = USUAL[where.type]
    return measure(
        lambda: loading.load(
            name,
            device=where,
            dtype=dtype,
            quantize=quantize,
            adapter=None,
            max_batch=max(sizes),
            max_length=None,
            write="canvas",
            threads=threads,
            memory=memory,
        ),
        batches=(sizes := sizes_in(batches) or usual[0]),
        prompt=prompt or usual[1],
        new=new or usual[2],
        prefills=sorted({*usual[3], *([prompt] if prompt and where.type == "cuda" else ())}),
        tokens=usual[4],
        rules=rules,
    )


def check_rules(rules: Mapping[str, Any]) -> None:
    """Reject rules that cannot be measured, before any weights are loaded."""
    for name, rule in rules.items():
        SETTINGS[name].check(rule)


def rule_name(rule: Any) -> str:
    """Return the name of a built-in rule, or the class or function of another one."""
    return rule if isinstance(rule, str) else getattr(rule, "__name__", type(rule).__name__)


def sizes_in(text: str | None) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--batches must be positive numbers separated by commas, such as 1,4; got {text!r}")
    return tuple(int(part) for part in parts)


def render(figures: dict[str, Any], console: Console) -> None:
    if "canvases" in figures:
        large_cpu.render(figures, console)
        return
    kind = figures["quantized"] or figures["dtype"]
    console.print(
        f"{figures['device']}, {kind}: {figures['weights_GB']:.2f} GB of weights, "
        f"loaded in {figures['seconds_to_load']:.1f} s, ready {figures['seconds_until_ready']:.1f} s later"
    )
    table = Table("batch", "ms per step", "tokens/s", "times batch 1", "by steps alone", "times the floor")
    first = figures["batches"][0]["tokens_per_second"]
    for row in figures["batches"]:
        rate, step = row["tokens_per_second"], row["ms_per_step"]
        table.add_row(
            str(row["batch"]),
            f"{step:.2f}",
            f"{rate:,.0f}",
            f"{rate / first:.2f}",
            f"{row['by_steps_tokens_per_second']:,.0f}",
            f"{step / figures['floor_ms']:.2f}",
        )
    console.print(table)
    if "copied_GB_a_step" in figures:
        console.print(
            f"floor: {figures['floor_ms']:.2f} ms to copy {figures['copied_GB_a_step']:.2f} GB, the experts of "
            f"{figures['streamed_layers']} layers, at {figures['copy_GBps']:.1f} GB/s"
        )
    else:
        console.print(
            f"floor: {figures['floor_ms']:.2f} ms to read the weights of a step at {figures['memory_TBps']:.2f} TB/s"
        )
    for row in figures["prefill"]:
        console.print(f"prompt of {row['tokens']:,}: {row['tokens_per_second']:,.0f} tokens/s")
    if (rate := figures["autoregressive_tokens_per_second"]) is not None:
        console.print(f"autoregressive: {rate:.1f} tokens/s; canvases are {first / rate:.1f} times as fast")
        passes = figures["verified_passes_per_second"]
        console.print(
            f"verified: {passes:.1f} passes/s; as fast as autoregressive with {rate / passes:.2f} tokens each"
        )
    if figures.get("kernels"):
        console.print("kernels: " + "; ".join(f"{family}: {tiles}" for family, tiles in figures["kernels"].items()))
    if "peak_memory_GB" in figures:
        console.print(f"peak memory: {figures['peak_memory_GB']:.2f} GB")


def _kernels(g: Any) -> dict[str, str]:
    """Return what runs of each family of kernels on a GPU."""
    if g.model.device.type != "cuda":
        return {}
    from gesso.backends.cuda import CudaBackend
    from gesso.backends.cuda.choices import choices

    backend = g.engine.runner.backend
    if not isinstance(backend, CudaBackend):
        return {"all": "plain operations"}
    low = g.config.quantization is not None
    chosen = choices(g.config, card_of(g.model.device), backend.kernels, low=low)
    return {str(family): tiles for family, tiles in chosen.items()}


def draw(figures: dict[str, Any]) -> str:
    """Plot tokens per second by batch size, and the limit set by reading the weights."""
    if "canvases" in figures:
        raise InputError("--plot shows batches, which are not measured for a large model on a CPU; leave it out")
    batches = figures["batches"]
    canvases = figures["steps"] * figures["floor_ms"] / 1e3  # the least seconds of one
    ours = [Point(row["batch"], row["tokens_per_second"]) for row in batches]
    most = [Point(row["batch"], row["batch"] * figures["canvas"] / canvases) for row in batches]
    return svg(
        [Series(figures["quantized"] or figures["dtype"], ours), Series("limit by memory bandwidth", most)],
        title=f"Tokens per second on {figures['device']}",
        x_label="requests at once",
        y_label="tokens per second",
        top=max(point.y for point in (*ours, *most)),
    )


def measure(
    load: Callable[[], Any], *, batches: Sequence[int], prompt: int, new: int, prefills: Sequence[int], tokens: int,
    rules: Mapping[str, Any] = RULES,
) -> dict[str, Any]:  # fmt: skip
    """Measure the model that `load` returns. `tokens` are generated autoregressively.

    A large model on a CPU is measured by `gesso.bench.large_cpu`, with sizes of its own.
    """
    began = time.perf_counter()
    g = load()
    device = g.model.device
    wait(device)
    loaded = time.perf_counter()
    if device.type == "cpu" and loaded_bytes(g.model) >= LEAST_BYTES:
        speed = read_speed(device, READ_VALUES["cpu"])
        return large_cpu.measure(g, loaded - began, speed, prompt=prompt, new=new, rules=rules)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    _write(g, 1, prompt, 2 * g.config.canvas_length, rules, same=True)
    wait(device)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
        "dtype": str(g.model.dtype).removeprefix("torch."),
        "quantized": g.config.quantization,
        "prompt": prompt,
        "new": new,
        "steps": STEPS,
        **{name: rule_name(rule) for name, rule in rules.items()},
        "canvas": g.config.canvas_length,
        "seconds_to_load": loaded - began,
        "seconds_until_ready": time.perf_counter() - loaded,
        "weights_GB": sum(t.nbytes for t in _tensors(g.model)) / 1e9,
    }
    figures["kernels"] = _kernels(g)
    longest = g.engine.max_length
    host_experts = streamed(g.model)
    speed = read_speed(device, 2**27 if host_experts else READ_VALUES[device.type])
    figures["memory_TBps"] = speed / 1e12
    figures["floor_ms"] = step_bytes(g.model) / speed * 1e3
    if host_experts is not None:
        longest = min(longest, CONTEXT + 1)  # memory was planned for this context
        copies = copy_speed(host_experts)
        figures["streamed_layers"] = len(host_experts.layers)
        figures["copied_GB_a_step"] = host_experts.nbytes / 1e9
        figures["copy_GBps"] = copies / 1e9
        figures["floor_ms"] = max(figures["floor_ms"], host_experts.nbytes / copies * 1e3)
    figures["batches"] = [measure_batch(g, size, prompt, new, rules) for size in batches]
    for row in figures["batches"]:
        row["share_of_floor"] = figures["floor_ms"] / row["ms_per_step"]
    figures["prefill"] = [_prefill(g, length) for length in prefills if length < longest]
    figures["autoregressive_tokens_per_second"] = _by_token(g, prompt, tokens, "tokens") if tokens else None
    figures["verified_passes_per_second"] = _by_token(g, prompt, tokens, "verified") if tokens else None
    if device.type == "cuda":
        figures["peak_memory_GB"] = torch.cuda.max_memory_allocated(device) / 1e9
    return figures


def measure_batch(
    g: Any, size: int, prompt: int, new: int, rules: Mapping[str, Any], adapters: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure one batch size after equal runs that compile and capture everything. Figures are medians of RUNS runs.

    Requests take the `adapters` in turn. A pass that commits a canvas and begins the next is captured only after it has
    recurred several times.

    Step time is measured with the host waiting for each step, after prompts that are in the cache. Tokens per second
    are measured as a user sees them: with commits, and with prefill that shares passes with steps.
    `by_steps_tokens_per_second` excludes both, for comparison with peers and the floor.
    """
    runs = range(RUNS[g.model.device.type])
    for same in (True, False):
        _write(g, size, prompt, new, rules, adapters, same=same)
    waited = [_write(g, size, prompt, new, rules, adapters, same=True, waiting=True)[0] for _ in runs]
    together = [_write(g, size, prompt, new, rules, adapters) for _ in runs]
    steps = [statistics.median(seconds) for seconds in waited]  # of each run
    step = statistics.median(steps)
    return {
        "batch": size,
        "ms_per_step": step * 1e3,
        "ms_per_step_of_runs": [seconds * 1e3 for seconds in steps],
        "passes": len(waited[0]),
        "tokens_per_second": size * new / statistics.median(sum(passes) for passes, _ in together),
        "by_steps_tokens_per_second": size * g.config.canvas_length / (STEPS * step),
        "with_prompt_tokens_per_second": size * new / statistics.median(seconds for _, seconds in together),
    }


def _write(
    g: Any, size: int, prompt: int, new: int, rules: Mapping[str, Any], adapters: Sequence[str] = (), *,
    same: bool = False, waiting: bool = False,
) -> tuple[list[float], float]:  # fmt: skip
    """Return the seconds of each pass with a denoising step, and of the whole run.

    Requests take the adapters in turn. With `waiting`, the host waits for the device after every pass; otherwise only
    at the end of a canvas. The prompts are new ones or the `same` in every call.
    """
    options: dict[str, Any] = {"steps": STEPS, **rules}
    for i, request in enumerate(requests(g, size, prompt, new, same=same, **options)):
        g.engine.submit(replace(request, adapter=adapters[i % len(adapters)] if adapters else None))
    steps, began = [], time.perf_counter()
    before = began
    while g.engine.busy:
        events = g.engine.step()
        if waiting:
            wait(g.model.device)
        now = time.perf_counter()
        if any(isinstance(event, Draft) for event in events):
            steps.append(now - before)
        before = now
    return steps, before - began


def _prefill(g: Any, length: int) -> dict[str, Any]:
    """Measure the speed of prefill in the engine's pieces, after two warm-up runs as in `measure_batch`."""
    times = []
    for _ in range(3):
        (request,) = requests(g, 1, length, 1, steps=1, stopping="fixed")
        g.engine.submit(request)
        began = time.perf_counter()
        while g.engine.busy:
            g.engine.step()
        wait(g.model.device)
        times.append(time.perf_counter() - began)
    return {"tokens": length, "tokens_per_second": length / times[-1]}


def _by_token(g: Any, prompt: int, tokens: int, write: WriteName) -> float:
    """Return the passes per second of a way of writing in which the causal encoder decides every token."""
    rates = []
    for _ in range(2):
        (request,) = requests(g, 1, prompt, tokens, same=True, write=write)
        g.engine.submit(request)
        times = []
        while g.engine.busy:
            events = g.engine.step()
            if any(isinstance(event, Draft) for event in events):
                times.append(time.perf_counter())
        warm = min(8, len(times) // 2)  # passes until everything is captured
        rates.append((len(times) - warm) / (times[-1] - times[warm - 1]))
    return rates[-1]


# --- the floor --------------------------------------------------------------------------------------------------------


def step_bytes(model: DiffusionGemma) -> int:
    """Return the bytes read per step: every weight of the text model once, a tied embedding twice (head and
    self-conditioning).
    """
    table = model.decoder.embed_tokens
    again = (*table.parameters(), *table.buffers()) if model.lm_head is None else ()
    held = streamed(model)  # its layers view two slots, each of which `_tensors` has once
    hidden = 0 if held is None else held.nbytes - held.slot_bytes
    tower = 0 if model.vision is None else sum(tensor.nbytes for tensor in _tensors(model.vision))
    return sum(tensor.nbytes for tensor in (*_tensors(model), *again)) + hidden - tower


def copy_speed(held: StreamedExperts) -> float:
    """Return the bytes per second of copies from pinned memory, in pieces of a streamed layer, without other work.

    The memory is pinned by torch, so this also shows whether that of the experts is slower.
    """
    slot = held.slots[0]
    source, count = torch.empty(slot.nbytes, dtype=torch.uint8, pin_memory=slot.is_cuda), -(-(10**9) // slot.nbytes)
    times = []
    for _ in range(5):
        wait(slot.device)
        began = time.perf_counter()
        for _ in range(count):
            slot.copy_(source, non_blocking=True)
        wait(slot.device)
        times.append(time.perf_counter() - began)
    return count * slot.nbytes / min(times)


READ_VALUES = {"cuda": 2**29, "cpu": 2**26}


def read_speed(device: torch.device, values: int) -> float:
    """Return the bytes per second of a sum over this many float32 values: more than any cache holds."""
    numbers = torch.ones(values, device=device)
    times = []
    for _ in range(5):
        wait(device)
        began = time.perf_counter()
        numbers.sum()
        wait(device)
        times.append(time.perf_counter() - began)
    return numbers.nbytes / min(times)


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return list({t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}.values())

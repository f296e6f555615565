"""The kernels of a step in groups, and the distance of each group to the memory floor.

The floor is the time to read the weights of a group, and its part of the KV cache, once at the speed that a large sum
reaches on the same device. The times of all groups and the gaps add up to the step: where kernels overlap, the one that
started first counts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from gesso.checkpoint.vision import PREFIX as VISION
from gesso.model.cache import KVCache
from gesso.model.transformer import DiffusionGemma

# The dense half of the feed-forward overlaps the experts, or shares a launch with them.
EXPERTS, ATTENTION, VOCABULARY, ROWS, ADAPTERS, OTHERS, GAPS = GROUPS = (
    "experts and dense half", "attention block", "vocabulary", "norms, router, join", "adapters",
    "other operations", "gaps",
)  # fmt: skip
# A kernel belongs to the longest of these prefixes that its name has. What ran before a dense product tells which
# half of the layer it is in.
KERNELS: Mapping[str, str] = {
    **dict.fromkeys(("_up", "_down", "_group", "_gated", "_feed_forward"), EXPERTS),
    **dict.fromkeys(("_attend", "attend_hopper", "_combine", "_append", "_heads", "_product"), ATTENTION),
    **dict.fromkeys(
        ("_logits", "_merge", "_probabilities", "_mean", "_add_splits", "_top", "_probability"), VOCABULARY
    ),
    **dict.fromkeys(("_rms_norm", "_norm_low", "_add_norms", "_scores", "_choose", "_join", "_quantize_rows"), ROWS),
    **dict.fromkeys(("_shrink", "_quantize_and_shrink"), ADAPTERS),
}
ROUTED, JOINED = "_choose", "_join"  # the first and the last kernel of a layer's feed-forward half
SHOWN = 0.01  # ms: a kernel whose time differs by less is not listed


class Timed(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def start(self) -> float: ...

    @property
    def end(self) -> float: ...


def group_times(spans: Iterable[Timed]) -> dict[str, float]:
    """Return the time of each group, in the unit of the spans."""
    times: dict[str, float] = defaultdict(float)
    until, in_feed_forward = None, False
    for span in sorted(spans, key=lambda span: span.start):
        until = span.start if until is None else until
        times[GAPS] += max(span.start - until, 0.0)
        times[_group(span.name, in_feed_forward)] += max(span.end - max(span.start, until), 0.0)
        until = max(until, span.end)
        if span.name.startswith((ROUTED, JOINED)):
            in_feed_forward = span.name.startswith(ROUTED)
    return times


def _group(name: str, in_feed_forward: bool) -> str:
    fitting = max((beginning for beginning in KERNELS if name.startswith(beginning)), key=len, default=None)
    if fitting == "_product" and in_feed_forward:
        return EXPERTS
    return OTHERS if fitting is None else KERNELS[fitting]


def group_bytes(model: DiffusionGemma, cache: KVCache) -> dict[str, int]:
    """Return the bytes that each group reads per step: its weights, and the cache. A tied embedding is read twice."""
    found: dict[str, int] = defaultdict(int)
    parts = {".experts.": EXPERTS, ".self_attn.": ATTENTION, ".mlp.": EXPERTS, "embed_tokens": VOCABULARY}
    parts |= {"self_conditioning.": EXPERTS, "lm_head": VOCABULARY}
    seen: set[int] = set()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.data_ptr() not in seen and not name.startswith(VISION):
            seen.add(tensor.data_ptr())
            group = next((group for part, group in parts.items() if part in name), ROWS)
            found[group] += tensor.nbytes
    if model.lm_head is None:
        found[VOCABULARY] *= 2
    for layer in cache.layers:
        for row, length in enumerate(cache.lengths):
            read = length if layer.window is None else min(length, layer.window - 1)
            found[ATTENTION] += 2 * read * layer.k[row][:1].nbytes
    return found


def groups(spans: Sequence[Timed], steps: int, sizes: Mapping[str, int], speed: float) -> list[dict[str, Any]]:
    """Return milliseconds, gigabytes, floor and their ratio of each group. `speed` is in bytes per second."""
    times = group_times(spans)
    found = []
    for name in GROUPS:
        ms, floor = times.get(name, 0.0) / steps / 1e3, sizes.get(name, 0) / speed * 1e3
        if ms:
            ratio = ms / floor if floor else None
            found.append({"name": name, "ms": ms, "GB": sizes.get(name, 0) / 1e9, "floor_ms": floor, "ratio": ratio})
    return found


def render(found: dict[str, Any], console: Console, earlier: dict[str, Any] | None = None) -> None:
    """Print the groups, or on a CPU the operations; beside an `earlier` measurement, the differences."""
    rows, before = found.get("groups", found["rows"]), None
    if earlier is not None:
        before = {row["name"]: row["ms"] for row in earlier.get("groups" if "groups" in found else "rows", [])}
    headings = [
        "group" if "groups" in found else "operation",
        "ms",
        *(["GB", "floor", "ratio"] if "groups" in found else []),
    ]
    table = Table(*headings, *(["before", "difference"] if before is not None else []))
    for row in rows:
        cells = [row["name"], f"{row['ms']:.3f}"]
        if "groups" in found:
            read = [f"{row['GB']:.2f}", f"{row['floor_ms']:.3f}"] if row["GB"] else ["–", "–"]
            cells += [*read, f"{row['ratio']:.2f}" if row["GB"] >= 0.1 else "–"]
        table.add_row(*cells, *_differences(row, before))
    console.print(table)
    then = "" if earlier is None else f" (before: {earlier['ms_per_step']:.3f})"
    console.print(f"a step: {found['ms_per_step']:.3f} ms{then}, {found['calls']:.0f} launches")
    if "groups" in found and earlier is not None:
        _render_kernels(found, earlier, console)


def _differences(row: Mapping[str, Any], before: Mapping[str, float] | None) -> list[str]:
    if before is None:
        return []
    if row["name"] not in before:
        return ["–", "new"]
    return [f"{before[row['name']]:.3f}", f"{row['ms'] - before[row['name']]:+.3f}"]


def _render_kernels(found: dict[str, Any], earlier: dict[str, Any], console: Console) -> None:
    """Print the kernels whose time per step has changed, those that changed most first."""
    now, before = ({row["name"]: row["ms"] for row in each["rows"]} for each in (found, earlier))
    changes = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in now | before}
    table = Table("kernel", "ms", "before", "difference")
    for name, change in sorted(changes.items(), key=lambda each: -abs(each[1])):
        if abs(change) >= SHOWN:
            table.add_row(name[:60], f"{now.get(name, 0.0):.3f}", f"{before.get(name, 0.0):.3f}", f"{change:+.3f}")
    if table.row_count:
        console.print(table)

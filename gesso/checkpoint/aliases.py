"""Short names of DiffusionGemma: `diffusiongemma` chooses format and precision by memory, others name a file.

The sizes are those that the repositories state. The limits of memory are computed from them, not measured: the files
were not downloaded and run.
"""

from dataclasses import dataclass
from pathlib import Path

from gesso.errors import DoesNotFitError

ALIAS = "diffusiongemma"
GIGABYTE = 10**9


@dataclass(frozen=True)
class Published:
    """A published checkpoint: its hub name, and the size of its files."""

    name: str
    gigabytes: float
    description: str


SOURCES = {
    "bf16": Published("google/diffusiongemma-26B-A4B-it", 51.6, "Google's checkpoint"),
    "fp8": Published("RedHatAI/diffusiongemma-26B-A4B-it-FP8-dynamic", 27.2, "FP8"),
    "nvfp4": Published("nvidia/diffusiongemma-26B-A4B-it-NVFP4", 18.8, "experts in NVFP4"),
    "q4": Published("unsloth/diffusiongemma-26B-A4B-it-GGUF:Q4_K_M", 16.8, "GGUF in Q4_K_M"),
}
# By usable GPU memory in GB, the first row that applies: the source, what to quantize it to, and why.
GPU = (
    (60, "bf16", "fp8", "quantized to fp8 while loading"),
    (32, "fp8", None, "fits with a long context"),
    (20, "nvfp4", None, "fits with workspace and context"),
    (7, "q4", None, "part of the experts stays in host memory"),
)
HOST = 20  # GB of memory that Q4_K_M needs on a CPU, workspace included


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint for a device, and one line that says why."""

    name: str
    quantize: str | None
    reason: str


def names() -> list[str]:
    """Return all aliases."""
    return [ALIAS, *(f"{ALIAS}:{source}" for source in SOURCES)]


def is_automatic(name: str | Path | None) -> bool:
    """Return whether the checkpoint depends on the device."""
    return isinstance(name, str) and name == ALIAS


def hub_name(name: str | Path) -> str | Path:
    """Return the hub name of an alias, and any other name unchanged. Without a device, it is Google's checkpoint."""
    if isinstance(name, str) and name in names():
        return SOURCES[name.partition(":")[2] or "bf16"].name
    return name


def choose(device: str, usable: int, quantize: str | None) -> CheckpointChoice:
    """Return the checkpoint for a device (cuda or cpu) of which `usable` bytes may be used.

    An explicit `quantize` needs the weights that were not quantized before: Google's.
    """
    here = f"{usable / GIGABYTE:.1f} GB of {'GPU' if device == 'cuda' else 'host'} memory may be used"
    if quantize not in (None, "none", "auto"):
        return _choice("bf16", quantize, f"quantized to {quantize} as requested")
    if device != "cuda":
        need = f"the 26B model needs about {HOST} GB of host memory and is slow on a CPU"
        if usable < HOST * GIGABYTE:
            raise DoesNotFitError(f"no GPU; {need}; {here}")
        return _choice("q4", None, f"no GPU; {need}; {here}")
    for least, source, packed, why in GPU:
        if usable >= least * GIGABYTE:
            return _choice(source, packed, f"{here}; {why}")
    raise DoesNotFitError(f"{here}, and {ALIAS} needs at least {GPU[-1][0]} GB; device=cpu needs {HOST} GB of memory")


def _choice(source: str, quantize: str | None, why: str) -> CheckpointChoice:
    published = SOURCES[source]
    size = f"{published.gigabytes} GB to download"
    return CheckpointChoice(
        name=published.name,
        quantize=quantize,
        reason=f"{ALIAS}: {published.name} ({published.description}, {size}): {why}",
    )

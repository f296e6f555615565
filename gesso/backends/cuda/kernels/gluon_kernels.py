"""The modules with kernels in Gluon, for Hopper GPUs.

Gluon's interface changes with Triton's version. If one of these modules cannot be imported, or if a kernel of its
family does not compile during the warm-up, the kernels in Triton that it stands in for run instead, with the same bits.
No other module imports Gluon.
"""

import logging
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

import torch
import triton

from gesso.cards.running import card_of

logger = logging.getLogger("gesso")

PURPOSES = {
    "attention_hopper": "attention with many rows",
    "feed_forward_hopper": "dense MLP and experts in one launch",
    "experts_int4_hopper": "int4 experts",
}
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention_hopper",),
    "experts": ("feed_forward_hopper", "experts_int4_hopper"),
}
_modules: dict[str, ModuleType] = {}
_failures: dict[str, str] = {}


def gluon_kernels(name: str) -> ModuleType | None:
    """Import a module of Gluon kernels. If that fails, warn once and return None."""
    if name not in _modules and name not in _failures:
        try:
            _modules[name] = import_module(f"{__package__}.{name}")
        except Exception as error:  # a renamed function is an ImportError or AttributeError, a removed one any error
            _fail(name, f"{type(error).__name__}: {error}")
    return _modules.get(name)


def switch_off(family: str, reason: str) -> bool:
    """Switch off the Gluon kernels of a family. Return whether any were in use."""
    used = [name for name in FAMILIES.get(family, ()) if name in _modules]
    for name in used:
        del _modules[name]
        _fail(name, reason)
    return bool(used)


def missing_kernels(device: torch.device) -> list[str]:
    """Import all modules if the device is a Hopper GPU, and return a line for each that failed."""
    if card_of(device).has_warp_group_products:
        for name in PURPOSES:
            gluon_kernels(name)
    return [_described(name) for name in _failures]


def _fail(name: str, reason: str) -> None:
    _failures[name] = reason
    logger.warning("%s", _described(name))


def _described(name: str) -> str:
    return (
        f"the kernels of {name} ({PURPOSES[name]}) do not work with Triton {triton.__version__}, so slower ones run "
        f"in their place, with the same results: {_failures[name]}"
    )

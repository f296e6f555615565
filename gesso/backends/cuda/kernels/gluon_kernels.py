"""The modules with kernels in Gluon, for Hopper GPUs.

Gluon's interface changes with Triton's version. If one of these modules cannot be imported, the kernels in Triton that
it stands in for run instead, with the same bits. No other module imports Gluon.
"""

import logging
from functools import lru_cache
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
_failures: dict[str, str] = {}


@lru_cache
def gluon_kernels(name: str) -> ModuleType | None:
    """Import a module of Gluon kernels. If that fails, warn once and return None."""
    try:
        return import_module(f"{__package__}.{name}")
    except Exception as error:  # a renamed function is an ImportError or an AttributeError, a removed one any error
        _failures[name] = f"{type(error).__name__}: {error}"
        logger.warning("%s", _described(name))
        return None


def missing_kernels(device: torch.device) -> list[str]:
    """Import all modules if the device is a Hopper GPU, and return a line for each that failed."""
    if card_of(device).has_warp_group_products:
        for name in PURPOSES:
            gluon_kernels(name)
    return [_described(name) for name in _failures]


def _described(name: str) -> str:
    return (
        f"the kernels of {name} ({PURPOSES[name]}) do not work with Triton {triton.__version__}, so slower ones run "
        f"in their place, with the same results: {_failures[name]}"
    )

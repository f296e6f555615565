"""The card of a device, from its driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gesso.cards.card import KIB, MIB, SHARED_KIB, Card

if TYPE_CHECKING:
    import torch

# On a CPU, Triton's interpreter runs the kernels with the tiles of an H200, and without the instructions that only
# Hopper has.
INTERPRETER = Card(
    name="",
    title="Triton's interpreter",
    capability=(8, 9),
    processors=132,
    shared_kib=SHARED_KIB[9, 0],
    l2_mib=0,
    memory_gb=0,
    driver_mib=0,
    bandwidth_gbs=0,
    source="",
)
_played: list[Card] = []


def card_of(device: "torch.device") -> Card:
    """Return the card of a device, or the interpreter on a CPU."""
    if _played:
        return _played[-1]
    return _described(device) if device.type == "cuda" else INTERPRETER


@contextmanager
def playing(card: Card) -> Iterator[None]:
    """Choose kernels for this card on every device. To compile for other cards, and for tests."""
    _played.append(card)
    try:
        yield
    finally:
        _played.pop()


@lru_cache
def _described(device: "torch.device") -> Card:
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    kilohertz, bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return Card(
        name="",
        title=properties.name,
        capability=(properties.major, properties.minor),
        processors=properties.multi_processor_count,
        shared_kib=(
            properties.shared_memory_per_block_optin // KIB,
            properties.shared_memory_per_multiprocessor // KIB,
        ),
        l2_mib=properties.L2_cache_size / MIB,
        memory_gb=properties.total_memory / 1e9,
        driver_mib=properties.total_memory // MIB,
        integrated=bool(properties.is_integrated),
        bandwidth_gbs=2 * kilohertz * bits / 8 / 1e6,  # two transfers per clock
        source="the driver",
    )

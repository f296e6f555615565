"""The configuration of torch's CUDA allocator, for processes that allocate blocks of many sizes: serving and training.

With fixed segments, blocks of many sizes fragment the memory: an allocation may fail although as much is free.
"""

from collections.abc import Mapping

EXPANDABLE = "expandable_segments:True"
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that selects expandable segments; none if the user configures the allocator.

    Set it before torch is imported: the allocator reads it once.
    """
    if any(name in environment for name in VARIABLES):
        return {}
    return {VARIABLES[0]: EXPANDABLE}

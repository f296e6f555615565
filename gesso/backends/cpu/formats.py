"""The formats that the CPU kernels multiply, and the conversion of others to them."""

import torch

from gesso.checkpoint.quantize import int8
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.matrices import ROWS
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.quantize.repack import repacked

KERNELS = frozenset(("int4", "int8"))


def for_cpu(packed: Packed) -> Packed:
    """Return the same matrix, or experts, in a format of the kernels: FP8 becomes int8, which adds an error of 0.5 %.

    Other formats, and matrices whose rows cannot be cut into groups, stay as they are: they are unpacked to be used.
    """
    if packed.format != "fp8" or packed.shape[-1] % int8.GROUP:
        return packed
    is_stack = len(packed.shape) == 3
    parts = packed.unbind() if is_stack else packed.split(ROWS)
    packed_parts = [FORMATS["int8"].pack(part.dense(torch.float32)) for part in parts]
    join = torch.stack if is_stack else torch.cat
    names = packed_parts[0].keys()
    return repacked("int8", packed, {name: join([tensors[name] for tensors in packed_parts]) for name in names})

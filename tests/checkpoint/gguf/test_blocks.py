"""Every block type unpacks to the values of the `gguf` package, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from gesso.checkpoint.gguf import blocks
from gesso.checkpoint.gguf.types import BLOCKS, BY_NUMBER, OTHERS, TYPES


@pytest.mark.parametrize("name", TYPES)
def test_random_bytes_unpack_to_the_values_of_the_package_bit_for_bit(name):
    type, kind = TYPES[name], gguf.GGMLQuantizationType[name]
    raw = np.random.default_rng(0).integers(0, 256, (3, 2, 64, type.bytes), dtype=np.uint8)
    if name == "NVFP4":
        raw[..., :4] &= 0x7F  # its scales are unsigned
    raw = raw.reshape(3, 2, -1)
    with np.errstate(all="ignore"):  # random scales include infinity and NaN
        expected = gguf.quants.dequantize(raw, kind)
    found = blocks.unpack(name, torch.from_numpy(raw)).numpy()
    assert found.shape == expected.shape == (3, 2, 64 * type.values)
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | np.isnan(found) & np.isnan(expected)).all()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_part_of_the_rows_unpacks_alone(name):
    raw = torch.randint(
        0, 256, (4, 3 * TYPES[name].bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    whole = blocks.unpack(name, raw)
    assert torch.equal(blocks.unpack(name, raw[1:3]).nan_to_num(), whole[1:3].nan_to_num())


def test_numbers_and_sizes_of_types_are_those_of_the_package():
    kinds = {kind.value: kind for kind in gguf.GGMLQuantizationType}
    for number, type in BY_NUMBER.items():
        assert (kinds[number].name, gguf.GGML_QUANT_SIZES[kinds[number]]) == (type.name, (type.values, type.bytes))
    assert {number: kind.name for number, kind in kinds.items() if number not in BY_NUMBER} == dict(OTHERS)

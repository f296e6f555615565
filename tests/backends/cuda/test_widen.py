"""Kernels that unpack whole matrices, against the formats' own unpacking, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")
from gesso.backends.cuda.kernels.widen import use_kernels, widened  # noqa: E402
from gesso.checkpoint.quantize.formats import FORMATS  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 96), (3, 4, 160)])
@pytest.mark.parametrize("format", ["fp8", "int4", "uint4", "nvfp4"])
def test_a_kernel_unpacks_as_the_format_does(format, shape, dtype):
    torch.manual_seed(0)
    packed = FORMATS[format].quantize("weight", torch.randn(shape))
    rounding = 2**-7 if dtype == torch.bfloat16 else 1e-6  # the interpreter does not round bfloat16 to nearest
    torch.testing.assert_close(widened(packed.tensors, format, dtype), packed.dense(dtype), rtol=rounding, atol=0)


def test_two_global_scales_per_expert_apply_to_the_two_halves_of_its_rows():
    torch.manual_seed(0)
    packed = FORMATS["nvfp4"].quantize("weight", torch.randn(3, 24, 32))
    tensors = packed.tensors | {"weight_global_scale": torch.rand(3, 2) + 0.5}
    expected = packed.unpack(tensors)
    torch.testing.assert_close(widened(tensors, "nvfp4", torch.float32), expected, rtol=1e-6, atol=0)
    packed.weight_global_scale = tensors["weight_global_scale"]
    use_kernels(packed, torch.float32)
    # Of 16 rows, the first part has some of both halves.
    rows = torch.cat([part.dense() for _, part in packed.row_parts(most=1, multiple=16)], dim=1)
    columns = torch.cat([part.dense() for _, part in packed.column_parts(most=1, multiple=16)], dim=2)
    for whole in (rows, columns):
        torch.testing.assert_close(whole, expected, rtol=1e-6, atol=0)


def test_all_matrices_of_a_model_unpack_with_kernels():
    packed = FORMATS["int4"].quantize("weight", torch.randn(4, 32))
    plain = packed.dense()
    use_kernels(torch.nn.ModuleList([packed]), torch.bfloat16)
    assert packed.unpack(packed.tensors).dtype == torch.bfloat16
    torch.testing.assert_close(packed.dense(), plain, rtol=2**-7, atol=0)

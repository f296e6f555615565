"""Products of bytes with the instructions of other processors than this one, as far as it has them."""

import platform

import numpy as np
import pytest
import torch

numba = pytest.importorskip("numba")
import llvmlite.binding as llvm  # noqa: E402
from llvmlite import ir  # noqa: E402

from gesso.backends.cpu.kernels import dots  # noqa: E402
from gesso.backends.cpu.kernels import vectors as vec  # noqa: E402

IS_X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.mark.parametrize(
    "features",
    [pytest.param({"avx2"}, marks=pytest.mark.skipif(not IS_X86, reason="x86 only")), set()],
    ids=["avx2", "none"],
)
def test_products_of_bytes_are_exact_with_the_instructions_of_other_processors(features, monkeypatch):
    monkeypatch.setattr(dots, "features", lambda context: features)  # those of another processor

    @numba.njit
    def multiply(start, nibbles, codes, signed, out):
        first, x = vec.load_ints(start), vec.load_bytes(signed)
        vec.store_floats(out, vec.to_floats(vec.dot_nibbles(first, vec.load_bytes(nibbles), x)))
        vec.store_floats(out + 64, vec.to_floats(vec.dot_bytes(first, vec.offset_bytes(vec.load_bytes(codes)), x)))

    for seed in range(4):
        torch.manual_seed(seed)
        start = torch.randint(-1000, 1000, (16,), dtype=torch.int32)
        nibbles = torch.randint(16, (64,), dtype=torch.uint8)
        codes, signed = (torch.randint(-127, 128, (64,)).to(torch.int8) for _ in range(2))
        if seed == 0:  # sums of two that are just below those which saturate
            codes[:], signed[:] = 127, -127
        out = torch.empty(2, 16)
        multiply(*(np.int64(tensor.data_ptr()) for tensor in (start, nibbles, codes, signed, out)))
        for found, weights in zip(out, (nibbles, codes), strict=True):
            fours = (weights.long() * signed.long()).view(16, 4).sum(1)
            assert torch.equal(found.long(), start + fours)


# The products of these processors cannot run here; that they are compiled to the right instruction can be seen.
@pytest.mark.parametrize(
    "triple, feature, instruction",
    [
        ("aarch64-linux-gnu", "dotprod", "sdot"),
        ("x86_64-linux-gnu", "avxvnni", "vpdpbusd"),
        ("x86_64-linux-gnu", "avx512vnni", "vpdpbusd"),
    ],
)
def test_processors_with_products_of_bytes_use_them(triple, feature, instruction):
    module = ir.Module()
    taken = [vec.Ints.llvm, vec.Bytes.llvm, vec.Bytes.llvm]
    function = ir.Function(module, ir.FunctionType(vec.Ints.llvm, taken), "multiply")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(dots.dot(builder, {feature}, *function.args, nibbles=False))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=f"+{feature}")
    parsed = llvm.parse_assembly(str(module))
    parsed.triple = triple
    assert instruction in machine.emit_assembly(parsed)

"""The PTX that converts four-bit weights, emulated line by line on the CPU, against the values of the format."""

import os
import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from gesso.backends.cuda.kernels import four_bit  # noqa: E402

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
WORD = 0xFFFFFFFF


def halves(word: Tensor) -> Tensor:
    """Return words [N] as bfloat16 [N, 2], the low half first."""
    return torch.stack((word & 0xFFFF, word >> 16), -1).to(torch.uint16).view(torch.bfloat16)


def words(pair: Tensor) -> Tensor:
    low, high = pair.view(torch.uint16).to(torch.int64).unbind(-1)
    return low | high << 16


def bits(number: Tensor) -> Tensor:
    return number.view(torch.uint16).to(torch.int64)


def run(ptx: str, outputs: int, *inputs: Tensor) -> list[Tensor]:
    """Return the contents of $0, $1, … after the instructions. Words are int64, to hold their highest bit."""
    cells = {f"${outputs + i}": value for i, value in enumerate(inputs)}
    body = re.sub(r"\.reg[^;]*;", "", ptx.strip()[1:-1])
    for line in filter(None, map(str.strip, body.split(";"))):
        name, rest = line.split(None, 1)
        if match := re.fullmatch(r"(\w+), \{(\$\d+), \2\}", rest):
            cells[match[1]] = cells[match[2]] | cells[match[2]] << 16
        elif match := re.fullmatch(r"\{(\$\d+), (\$\d+)\}, (\w+)", rest):
            cells[match[1]], cells[match[2]] = cells[match[3]] & 0xFFFF, cells[match[3]] >> 16
        else:
            target, *given = rest.split(", ")
            a, *more = (cells[g] if g in cells else torch.tensor(int(g, 16 if "x" in g else 10)) for g in given)
            match name.split(".")[0], more:
                case "mov", []:
                    found = a.expand(len(inputs[0]))
                case "mul", [b] if "bf16x2" in name:
                    found = words(halves(a) * halves(b))
                case "fma", [b, c]:  # rounded once: float32 would round the sum before
                    found = words((halves(a).double() * halves(b).double() + halves(c).double()).bfloat16())
                case "mul", [b]:
                    found = a * b & WORD
                case "and", [b]:
                    found = a & b
                case "shl", [b]:
                    found = a << b & WORD
                case "shr", [b]:
                    found = a >> b
                case "lop3", [b, c, table]:
                    assert int(table) == 0xEA
                    found = a & b | c
            cells[target] = found
    return [cells[f"${i}"] for i in range(outputs)]


@pytest.mark.parametrize("kind", four_bit.FOUR_BIT)
def test_four_bit_ptx_converts_every_value(kind):
    g = torch.Generator().manual_seed(0)
    byte_N4 = torch.randint(0, 256, (20_000, 4), generator=g)
    word_N = (byte_N4 << 8 * torch.arange(4)).sum(-1)
    nibble_N8 = torch.stack((byte_N4 & 15, byte_N4 >> 4), -1).flatten(1)
    if kind == "int4":
        scale_N = torch.randn(len(word_N), generator=g).bfloat16()
        given, text = run(four_bit.INT4_SCALES.value, 3, bits(scale_N)), four_bit.INT4.value
        expected = (nibble_N8 - 8) * scale_N.float()[:, None] / 2**40
    elif kind == "uint4":
        # Scales from 2^-50 to the limit of 2^35, and offsets from a small part of the scale to many times it.
        def draw(low: int, high: int) -> Tensor:
            size_N = 2.0 ** torch.randint(low, high, (len(word_N),), generator=g)
            sign_N = torch.randint(0, 2, (len(word_N),), generator=g) * 2 - 1
            return (1 + 0.99 * torch.rand(len(word_N), generator=g)) * size_N * sign_N

        scale_N = draw(-50, 35).bfloat16()
        offset_N = (draw(-12, 13) * scale_N.float()).bfloat16()
        offset_N[::50] = 0
        assert 2**34 < scale_N.abs().max() < 2**35
        given, text = run(four_bit.UINT4_SCALES.value, 3, bits(scale_N), bits(offset_N)), four_bit.INT4.value
        exact_N8 = nibble_N8 * scale_N.double()[:, None] + offset_N.double()[:, None]
        expected = exact_N8 / 2**40
        # The plain expression of the kernel rounds to float32 first, and to the same bits.
        plain_N8 = (nibble_N8.float() * scale_N.float()[:, None] + offset_N.float()[:, None]) * 2.0**-40
        assert torch.equal(plain_N8.bfloat16(), expected.bfloat16())
    else:
        code_N = torch.arange(len(word_N)) % 127  # all finite scales; 127 is NaN
        given, text = run(four_bit.E4M3.value, 1, code_N), four_bit.E2M1.value
        scale_N = code_N.to(torch.uint8).view(torch.float8_e4m3fn).float()
        sign = torch.where(nibble_N8 > 7, -1.0, 1.0)
        expected = E2M1[nibble_N8 & 7] * sign * scale_N[:, None] / 16384
    found = torch.stack(run(text, 8, word_N, *given), -1).to(torch.uint16).view(torch.bfloat16)
    assert torch.equal(found, expected.bfloat16())


def test_the_conversions_compile_for_a_gpu_with_this_triton():
    """In a process without the interpreter, which would accept what the compiler rejects."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.cuda.compile_four_bit"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "compiled", done.stderr[-2000:]

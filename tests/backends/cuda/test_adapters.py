"""Adapters in the kernels against the plain modules with one active adapter: on a GPU in bfloat16, and otherwise in
float32 in Triton's interpreter.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from gesso.adapters.lora import AdaptedExperts, AdaptedLinear, Lora  # noqa: E402
from gesso.backends.cuda import adapters as banks  # noqa: E402
from gesso.backends.cuda import experts as expert_products  # noqa: E402
from gesso.backends.cuda import linear  # noqa: E402
from gesso.backends.cuda.activations import ExpertOutputs, Fp8Rows, Interleaved, SplitK, matrix  # noqa: E402
from gesso.backends.cuda.kernels import linear as kernels  # noqa: E402
from gesso.backends.cuda.kernels import shrink  # noqa: E402
from gesso.backends.cuda.kernels.experts_four_bit import depth  # noqa: E402
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, interleaved  # noqa: E402
from gesso.backends.cuda.pass_adapters import PassAdapters, active  # noqa: E402
from gesso.checkpoint.quantize.formats import FORMATS  # noqa: E402
from gesso.model.experts import Experts  # noqa: E402
from gesso.model.modules import Linear  # noqa: E402
from tests.backends.cuda import test_mixture as mixtures  # noqa: E402

DEVICE, DTYPE = mixtures.DEVICE, mixtures.DTYPE
EXACT = 1e-5 if DEVICE == "cpu" else 0.015  # bfloat16 has an error of about a half percent
NAMES = ("one", None, "two", "one")  # adapters of the tokens, in turn
RANKS = {"one": 3, "two": 20}


def adapt(weight, adapters, seed: int, names=tuple(RANKS)) -> None:
    g = torch.Generator().manual_seed(seed)
    for name in names:
        lora = Lora(weight, RANKS[name], alpha=2.0 * RANKS[name])
        lora.A.data.copy_(torch.randn(lora.A.shape, generator=g) * weight.shape[-1] ** -0.5)
        lora.B.data.copy_(torch.randn(lora.B.shape, generator=g) * RANKS[name] ** -0.5)
        adapters.put(name, lora)


def make_linear(inputs: int, outputs: int, seed: int, format=None, names=tuple(RANKS)) -> AdaptedLinear:
    base = Linear(inputs, outputs)
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * inputs**-0.5
    weight = weight.to(DEVICE, DTYPE)
    base.weight = torch.nn.Parameter(weight) if format is None else None
    module = AdaptedLinear(base)
    if format is not None:
        del module.weight
        module.weight = FORMATS[format].quantize("w", weight).to(DTYPE)
    adapt(module.weight, module.weight_adapters, seed, names)
    return module


def slots(tokens: int) -> torch.Tensor:
    number = {"one": 0, "two": 1, None: -1}
    found = [number[NAMES[i % len(NAMES)]] for i in range(tokens)]
    return torch.tensor(found, dtype=torch.int32, device=DEVICE)


def bank(sites, tokens: int) -> PassAdapters:
    """Return the factors of two adapters for some launches, and an adapter for each token."""
    pairs = {}
    for site in sites:
        a_SECI, b_SEOL = pairs[site.key] = site.empty(2, 32, DTYPE)
        for slot, name in enumerate(RANKS):
            site.write(a_SECI[slot], b_SEOL[slot], name, 32)
    return PassAdapters(pairs, slots(tokens))


def by_adapter(module, run, tokens: int) -> torch.Tensor:
    """Return the rows of the plain version, each with the adapter of its token."""
    found = None
    for name in (None, *RANKS):
        with active(module, name), torch.no_grad():
            rows = run().float()
        found = torch.zeros_like(rows) if found is None else found
        own = torch.tensor([NAMES[i % len(NAMES)] == name for i in range(tokens)], device=DEVICE)
        found[own] = rows[own]
    return found


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).mean())


def tokens_of(count: int, width: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(9)).to(DEVICE, DTYPE)


@torch.no_grad()
@pytest.mark.parametrize("format", [None, "fp8"])
def test_dense_products_have_the_adapter_of_each_token(format, monkeypatch):
    """The width is split into parts, one matrix of three has no second adapter, and no matrix fills its tiles."""
    monkeypatch.setattr(shrink, "WHOLE", 64)  # 1,024 inputs in parts take the interpreter seconds
    width, x_TI = 160, tokens_of(19, 160)
    modules = [
        make_linear(width, size, i, format, names)
        for i, (size, names) in enumerate(((48, tuple(RANKS)), (16, ("one",)), (32, tuple(RANKS))))
    ]
    adapters = bank(banks._dense(*modules), len(x_TI))
    assert len(adapters.pairs) == 1
    matrices = [matrix(each, adapters) for each in modules]
    found = linear.linears(x_TI, matrices, [10, 9])
    plain = linear.linears(x_TI, [matrix(each) for each in modules], [10, 9])
    for module, each, base in zip(modules, found, plain, strict=True):
        expected = by_adapter(module, lambda module=module: module(x_TI), len(x_TI))
        assert apart(each.float(), expected) < (EXACT if format is None else 0.1)
        of_base = adapters.slot_T < 0
        assert torch.equal(each[of_base], base[of_base]) and not torch.equal(each, base)
    if format is not None:  # rows that are in FP8 already
        rows = Fp8Rows(*kernels.quantize_rows(x_TI), DTYPE)
        again = linear.linears(rows, matrices, [10, 9])
        assert all(apart(each.float(), one.float()) < 0.05 for each, one in zip(again, found, strict=True))
    row = 18  # alone it gets the same bits
    adapters = PassAdapters(adapters.pairs, adapters.slot_T[row:].clone())
    alone = linear.linears(x_TI[row:], [matrix(each, adapters) for each in modules], [1])
    assert all(torch.equal(one[0], each[row]) for one, each in zip(alone, found, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("format", [None, "fp8"])
def test_gated_and_split_products_have_the_adapter_of_each_token(format, monkeypatch):
    x_TI = tokens_of(19, 64)
    gate, up = (make_linear(64, 48, seed, format) for seed in (1, 2))
    adapters = bank(banks._dense(gate, up), len(x_TI))
    found = linear.gated(x_TI, matrix(gate, adapters), matrix(up, adapters), [19])
    both = torch.nn.ModuleList([gate, up])
    expected = by_adapter(both, lambda: F.gelu(gate(x_TI).float(), approximate="tanh") * up(x_TI), len(x_TI))
    assert apart(found.float(), expected) < (EXACT if format is None else 0.1)

    if format is not None:
        down = make_linear(48, 32, 3, format)
        adapters = PassAdapters({**adapters.pairs, **bank(banks._dense(down), 19).pairs}, adapters.slot_T)
        rows, modules = Fp8Rows(*kernels.quantize_rows(x_TI), DTYPE), torch.nn.ModuleList([gate, up, down])
        found = linear.mlp(rows, *(matrix(each, adapters) for each in modules), [19])
        expected = by_adapter(
            modules, lambda: down(F.gelu(gate(x_TI).float(), approximate="tanh").to(DTYPE) * up(x_TI)), len(x_TI)
        )
        assert apart(found.float(), expected) < 0.1
        plain, of_base = linear.mlp(rows, *map(matrix, modules), [19]), adapters.slot_T < 0
        assert torch.equal(found[of_base], plain[of_base]) and not torch.equal(found, plain)

    x_TI, out = tokens_of(19, 512), make_linear(512, 32, 3, format)
    adapters = bank(banks._dense(out), len(x_TI))
    parts = linear.linear_split_k(x_TI, matrix(out, adapters), [19])
    assert isinstance(parts, SplitK)
    found = parts.sums_PTO[0]
    for part in parts.sums_PTO[1:]:
        found = found + part
    assert apart(found.to(DTYPE).float(), by_adapter(out, lambda: out(x_TI), 19)) < (EXACT if format is None else 0.1)
    monkeypatch.setattr(kernels, "UNREDUCED_TOKENS", 4)  # the same tokens, reduced
    assert torch.equal(linear.linear_split_k(x_TI, matrix(out, adapters), [19]), found.to(DTYPE))


def test_matrices_of_different_formats_have_separate_factors():
    x_TI, modules = tokens_of(9, 64), [make_linear(64, 32, 1, "fp8"), make_linear(64, 16, 2)]
    adapters = bank(banks._dense(*modules), len(x_TI))
    assert len(adapters.pairs) == 2
    found = linear.linears(x_TI, [matrix(each, adapters) for each in modules], [9])
    for module, each, limit in zip(modules, found, (0.1, EXACT), strict=True):
        assert apart(each.detach().float(), by_adapter(module, lambda module=module: module(x_TI), 9)) < limit


def make_experts(gate_up, down, width: int = 128) -> AdaptedExperts:
    module = AdaptedExperts(mixtures.make(gate_up, down, width))
    adapt(module.gate_up_proj, module.gate_up_proj_adapters, 1)
    adapt(module.down_proj, module.down_proj_adapters, 2)
    return module


def sites_of(module: Experts, k: int):
    return banks._experts(SimpleNamespace(experts=module, router=SimpleNamespace(k=k)))


def fast(module, x_TH, index_TK, weight_TK, adapters) -> torch.Tensor:
    format = expert_products.input_format(module, index_TK.shape[1])
    rows = Interleaved(interleaved(x_TH, depth("up", format))) if format in FOUR_BIT else x_TH
    found = expert_products.experts(module, rows, index_TK, weight_TK, [len(x_TH)], adapters)
    assert isinstance(found, ExpertOutputs)
    return (found.outputs_RH.float().unflatten(0, weight_TK.shape) * weight_TK[..., None]).sum(1)


@pytest.mark.parametrize("gate_up, down", [(None, "nvfp4"), ("fp8", "int4"), ("uint4", "fp8"), ("nvfp4", None)])
def test_experts_have_the_adapter_of_each_token(gate_up, down):
    module, given = make_experts(gate_up, down, width=64), mixtures.draw(4)
    assert expert_products.kernels_fit(module, mixtures.K)
    adapters = bank(sites_of(module, mixtures.K), 4)
    found, base = fast(module, *given, adapters), fast(module, *given, PassAdapters())
    expected = by_adapter(module, lambda: module(*given), 4)
    # FP8 rows have an error of some 5 % in each product, and the interpreter gets the carry of roundings wrong.
    assert apart(found, expected) < (0.2 if "fp8" in (gate_up, down) else 1e-4 if DEVICE == "cpu" else 0.02)
    of_base = adapters.slot_T < 0
    assert torch.equal(found[of_base], base[of_base]) and apart(found[~of_base], base[~of_base]) > 0.5
    own = adapters.slot_T == 1  # alone they get the same bits
    alone = PassAdapters(adapters.pairs, adapters.slot_T[own])
    assert torch.equal(fast(module, *(each[own] for each in given), alone), found[own])


@torch.no_grad()
def test_experts_that_all_run_have_the_adapter_of_each_token():
    module, (x_TH, _, _) = make_experts(None, None, width=48), mixtures.draw(7)
    k = mixtures.EXPERTS // 2 + 1
    adapters = bank(sites_of(module, k), 7)
    weight_TE = torch.rand(7, mixtures.EXPERTS, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    found = expert_products.experts(module, x_TH, None, weight_TE, [3, 4], adapters)
    assert apart(found.float(), by_adapter(module, lambda: module(x_TH, None, weight_TE), 7)) < 2 * EXACT


def test_plain_experts_run_each_piece_with_its_adapter():
    """Rows of this width fit no kernel."""
    module, given = make_experts(None, None, width=24), mixtures.draw(7)
    assert not expert_products.kernels_fit(module, mixtures.K) and not list(sites_of(module, mixtures.K))
    adapters = PassAdapters({}, slots(7), ["two", None])
    found = expert_products.experts(module, *given, [3, 4], adapters)
    for name, part in (("two", slice(0, 3)), (None, slice(3, 7))):
        with active(module, name):
            torch.testing.assert_close(found[part], module(*(each[part] for each in given)))

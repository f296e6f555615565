"""The kernels of every precision against plain operations, at the width of the 26B-A4B checkpoint."""

import pytest
import torch

from gesso.backends.cuda import CudaBackend
from gesso.backends.cuda.kernels import vocab, within
from gesso.backends.cuda.kernels.asked import logits_of
from gesso.backends.torch import TorchBackend
from gesso.checkpoint.parameters import assign
from gesso.checkpoint.quantize.formats import FORMATS, format_of, is_expert
from gesso.diffusion.hash import draw, position_keys
from gesso.diffusion.prediction import LIKELY
from gesso.diffusion.truncation import truncated
from gesso.engine.engine import Engine
from gesso.engine.request import Request, Score
from gesso.settings import Diffusion
from tests.backends.passes import CapturesPlainly
from tests.gpu.device import DEVICE, DRY_RUN
from tests.gpu.real_width import errors, make_model, outputs

pytestmark = pytest.mark.gpu


# A pair: the formats of the two matrices of the experts, as in files of other tools. The other matrices are FP8 then.
STORED = (None, "fp8", "int4", "nvfp4", ("uint4", "uint4"), ("uint4", "fp8"))


def packed_model(stored):
    model = make_model(torch.bfloat16)
    for name, tensor in list(model.named_parameters()) if stored else ():
        if isinstance(stored, tuple) and is_expert(name):
            format = FORMATS[stored[name.endswith("down_proj")]]
        else:
            format = format_of(name, tensor.shape, "fp8" if isinstance(stored, tuple) else stored)
        if format is not None:
            packed = format.quantize(name, tensor.detach())
            packed.dtype = torch.bfloat16
            assign(model, name, packed)
    return model


def test_packed_model_has_the_formats_of_its_experts():
    experts = packed_model(("uint4", "fp8")).decoder.layers[0].experts
    assert (experts.gate_up_proj.format, experts.down_proj.format) == ("uint4", "fp8")


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_kernels_match_plain_operations(record_property, stored):
    model = packed_model(stored)
    apart = errors(outputs(CudaBackend(model)), outputs(TorchBackend(model)))
    record_property("median", float(apart.median()))
    record_property("quantile_90", float(apart.quantile(0.9)))
    # With FP8 matrices, kernels also round activations, unlike the plain version: an error of about an eighth over
    # three layers of random weights. A defect gives an error above one.
    assert apart.median() < (0.02 if stored is None else 0.2)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_padding_and_other_texts_of_a_captured_pass_change_no_bits(stored):
    model = packed_model(stored)
    texts = [tuple(range(5, 5 + length)) for length in (3, 16, 17, 40, 100)]

    def scores(captures):
        backend = CapturesPlainly(model) if DRY_RUN else CudaBackend(model)
        engine = Engine(model, str, max_batch=8, backend=backend)
        backend.graphs.can_capture = captures
        wanted = [Score(prompt=(7,) * 9, texts=(text, text[:-2])) for text in texts]
        found = []
        for _ in range(3):  # uncaptured, captured, replayed
            for requests in (*([each] for each in wanted), wanted):  # alone, then side by side
                ids = [engine.submit(each) for each in requests]
                scored = {}
                while engine.busy:
                    scored |= {event.request_id: event.log_likelihoods for event in engine.step()}
                found += [scored[each] for each in ids]
        assert bool(backend.graphs.packed) == captures
        return found

    apart = scores(captures=False)
    assert scores(captures=True) == apart
    assert len({tuple(apart[i :: len(texts)]) for i in range(len(texts))}) == len(texts)
    assert all(len(set(apart[i :: len(texts)])) == 1 for i in range(len(texts)))


@pytest.mark.parametrize("stored", [None, "fp8", "int4"], ids=str)
def test_packed_passes_of_a_server_change_no_text_and_capture_nothing_later(stored):
    model, canvas = packed_model(stored), 64
    numbers = (
        {"settle": 0},
        {"steps": 3, "t_max": 0.5, "t_min": 0.1},
        {"settle": 1, "confidence": 9.0},
        {"stopping": "fixed"},
    )
    wanted = [
        Request(
            prompt=tuple(range(5, 5 + length)),
            max_new_tokens=new,
            diffusion=Diffusion(**{"steps": 4, "canvas_length": canvas, "entropy_bound": 20.0, **numbers[seed % 4]}),
            seed=seed,
        )
        for seed, (length, new) in enumerate(((3, 64), (300, 20), (17, 130), (100, 7), (40, 64), (9, 33)))
    ]

    def tokens(engine, groups):
        found = {}
        for requests in groups:
            ids = {engine.submit(each): each.seed for each in requests}
            while engine.busy:
                found |= {ids[event.request_id]: event.result.tokens for event in engine.step() if event.kind == "done"}
        return found

    engines = [
        Engine(model, str, max_batch=4, prefill=256, backend=CapturesPlainly(model) if DRY_RUN else CudaBackend(model))
        for _ in range(2)
    ]
    backend = engines[1].runner.backend
    backend.expect(4, canvas, 256)
    backend.compile_expected(engines[1].cache)
    while engines[1].captures_left:
        engines[1].capture_next()
    before = backend.counts.captures
    packed = tokens(engines[1], [wanted])
    assert backend.counts.captures == before
    assert packed == tokens(engines[0], ([each] for each in wanted)) and len(set(packed.values())) == len(wanted)


@pytest.mark.parametrize("packed", [False, True], ids=["bf16", "fp8"])
def test_likely_tokens_are_those_of_a_sort_of_all_logits(monkeypatch, packed):
    """At the vocabulary of the 26B-A4B checkpoint, with logits in bfloat16, of which many are equal."""
    tokens, vocabulary, hidden = (9, 700, 32) if DRY_RUN else (257, 262_144, 2816)
    generator = torch.Generator(DEVICE).manual_seed(0)
    # Triton's interpreter has no bfloat16.
    normal = {"generator": generator, "device": DEVICE, "dtype": torch.float32 if DRY_RUN else torch.bfloat16}
    hidden_TH, head_VH = torch.randn(tokens, hidden, **normal), torch.randn(vocabulary, hidden, **normal) / 16
    table_VH = FORMATS["fp8"].quantize("head", head_VH) if packed else head_VH
    temperature_T = torch.linspace(0.4, 2.0, tokens, device=DEVICE)
    key_T2 = position_keys(1, 0, 0, 2, tokens, DEVICE)
    stored, find = [], vocab.most_likely

    def watched(stored_TV, *rest):
        stored.append(stored_TV.clone())  # probabilities replace the logits
        return find(stored_TV, *rest)

    monkeypatch.setattr(vocab, "most_likely", watched)  # the stored logits are overwritten
    weights = table_VH, table_VH, 1.0, 30.0
    found = vocab.predict(hidden_TH, *weights, temperature_T, key_T2, likely=True)
    assert torch.equal(found.likely_CK[:, 0], found.argmax_C)
    for row, stored_V in enumerate(stored[0][:, :vocabulary]):
        logits_V = 30 * (stored_V.double() / 30).tanh()
        expected_K = stored_V.float().sort(descending=True, stable=True).indices[:LIKELY]
        assert torch.equal(found.likely_CK[row], expected_K)
        torch.testing.assert_close(found.likely_logit_CK[row].double(), logits_V[expected_K], rtol=1e-5, atol=1e-5)
    rows = torch.arange(0, tokens, 3, device=DEVICE)
    few = (given[rows] for given in (temperature_T, key_T2))
    alone = vocab.predict(hidden_TH[rows], *weights, *few, likely=True)
    for name in ("likely_CK", "likely_logit_CK", "soft_CH"):
        assert torch.equal(getattr(alone, name), getattr(found, name)[rows])


@pytest.mark.parametrize("packed", [False, True], ids=["bf16", "fp8"])
def test_asked_logits_are_those_of_the_prediction(record_property, packed):
    """They are computed again, from other tiles: a logit may round to the neighbouring bfloat16."""
    positions, vocabulary, hidden = (9, 700, 32) if DRY_RUN else (256, 262_144, 2816)
    generator = torch.Generator(DEVICE).manual_seed(0)
    normal = {"generator": generator, "device": DEVICE, "dtype": torch.float32 if DRY_RUN else torch.bfloat16}
    hidden_CH, head_VH = torch.randn(positions, hidden, **normal), torch.randn(vocabulary, hidden, **normal) / 16
    head_VH = FORMATS["fp8"].quantize("head", head_VH) if packed else head_VH
    ones_C, key_C2 = torch.ones(positions, device=DEVICE), position_keys(1, 0, 0, 2, positions, DEVICE)
    found = vocab.predict(hidden_CH, head_VH, head_VH, 1.0, 30.0, ones_C, key_C2, soft=False, likely=True)
    tokens_U = found.likely_CK.unique()
    asked_CU = logits_of(hidden_CH, head_VH, 30.0, tokens_U)
    place_CK = torch.searchsorted(tokens_U, found.likely_CK)
    asked_CK = asked_CU.take_along_dim(place_CK, -1)
    record_property("equal", float((asked_CK == found.likely_logit_CK).float().mean()))
    torch.testing.assert_close(asked_CK, found.likely_logit_CK, rtol=2.0**-7, atol=1e-5)
    for part in (tokens_U[:1], tokens_U[5:90], tokens_U.flip(0)):
        place_U = torch.searchsorted(tokens_U, part)
        assert torch.equal(logits_of(hidden_CH, head_VH, 30.0, part), asked_CU[:, place_U])
        assert torch.equal(logits_of(hidden_CH[7:], head_VH, 30.0, part), asked_CU[7:, place_U])


@pytest.mark.parametrize("settings", [{"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}], ids=str)
def test_restricted_draws_are_those_of_a_sort_of_all_logits(record_property, settings):
    """Where the probability of a nucleus is top_p up to rounding, one token more or less may be allowed."""
    positions, vocabulary, chosen = *((9, 700) if DRY_RUN else (256, 262_144)), Diffusion(**settings)
    generator = torch.Generator(DEVICE).manual_seed(0)
    product_CV = 4 * torch.randn(positions, vocabulary, generator=generator, device=DEVICE)
    product_CV = product_CV.to(torch.float16 if DRY_RUN else torch.bfloat16)
    key_C2 = position_keys(1, 0, 0, 2, positions, DEVICE)
    found_C = within.draw_within(chosen, product_CV, 30.0, 0.8, key_C2)
    pairs = zip(product_CV.split(32), key_C2.split(32), strict=True)
    logits = ((30 * torch.tanh(product_RV.float() / 30) / 0.8, key_R2) for product_RV, key_R2 in pairs)
    expected_C = torch.cat([draw(truncated(chosen, logits_RV), key_R2) for logits_RV, key_R2 in logits])
    record_property("same", share := (found_C == expected_C).double().mean().item())
    assert share >= 0.99
    again_C = within.draw_within(chosen, product_CV[5:8], 30.0, 0.8, key_C2[5:8])
    assert torch.equal(again_C, found_C[5:8])

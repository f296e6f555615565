"""The diffusion process without a network: randomness, schedule, samplers, stopping rules. Formulas are recomputed."""

import math

import pytest
import torch

from gesso import PRESETS
from gesso.backends import torch as backends
from gesso.backends.torch import TorchBackend
from gesso.diffusion import hash
from gesso.diffusion.canvas import Process
from gesso.diffusion.hash import draw
from gesso.diffusion.moment import at_least
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import argmax
from gesso.diffusion.samplers import (
    EntropyBound,
    Prediction,
)
from gesso.diffusion.schedule import alpha, temperature
from gesso.diffusion.stopping import FixedSteps, StableAndConfident
from gesso.settings import SAMPLERS, STOPPINGS, Diffusion
from tests.moments import CPU, draws, moment

# --- randomness ---------------------------------------------------------------------------------------------------


def test_hash_matches_its_definition_in_plain_integers():
    def mix(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    values = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 123456789]
    signed = torch.tensor([v - 2**32 if v >= 2**31 else v for v in values], dtype=torch.int32)
    assert (hash.mix(signed).long() & 0xFFFFFFFF).tolist() == [mix(v) for v in values]
    key = hash.position_keys(7, 1, 2, 0, 3, CPU)
    one, two = (int(v) & 0xFFFFFFFF for v in key[2])
    token = 5 * 0x9E3779B9 % 2**32 ^ one
    token = ((token ^ token >> 16) * 0x7FEB352D + two) % 2**32
    token = (token ^ token >> 15) * 0x846CA68B % 2**32
    assert int(hash.token_hash(key, 6)[2, 5]) & 0xFFFFFFFF == token ^ token >> 16


def test_every_coordinate_changes_the_position_keys():
    base = hash.position_keys(1, 2, 3, 0, 64, CPU)
    others = [(2, 2, 3, 0), (1 + 2**32, 2, 3, 0), (1, 3, 3, 0), (1, 2, 4, 0), (1, 2, 3, 1), (1, 2 + (1 << 24), 3, 0)]
    for seed, canvas, step, stream in others:
        assert not (hash.position_keys(seed, canvas, step, stream, 64, CPU) == base).any()
    assert torch.equal(hash.position_keys(1, 2, 3, 0, 20, CPU), base[:20]), "a shorter canvas must get the same draws"


def test_uniform_and_gumbel_are_finite_for_extreme_hashes():
    extremes = torch.tensor([-1, 0, -(2**31), 2**31 - 1, -256, -512], dtype=torch.int32)
    uniform = hash.uniform(extremes)
    assert ((uniform > 0) & (uniform < 1)).all() and hash.gumbel(extremes).isfinite().all()


def test_noise_is_uniform_over_the_vocabulary():
    counts = torch.stack([draws(seed).tokens(256, 50) for seed in range(400)]).flatten().bincount(minlength=50)
    expected = 400 * 256 / 50
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 85.4, "the 99.9 % point of 49 degrees of freedom"


def test_neighbouring_positions_and_steps_are_uncorrelated():
    table = torch.stack([draws(3, 0, step).uniform(512) for step in range(512)])
    for shifted in (table.roll(1, 0), table.roll(1, 1)):
        assert abs(torch.corrcoef(torch.stack([table.flatten(), shifted.flatten()]))[0, 1].item()) < 0.01
    assert abs(table.mean().item() - 0.5) < 0.005
    assert abs(table.var().item() - 1 / 12) < 0.002


def test_candidates_follow_the_distribution():
    probability_V = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    logits_CV = probability_V.log().expand(100_000, 5)
    counts = draw(logits_CV, draws().keys(100_000)).bincount(minlength=5)
    expected = 100_000 * probability_V
    assert ((counts - expected) ** 2 / expected).sum().item() < 18.5, "the 99.9 % point of 4 degrees of freedom"


def test_prediction_in_chunks_matches_prediction_from_logits(tiny):
    model, backend = tiny.model, TorchBackend(tiny.model)
    hidden_TH, temperature_T = torch.randn(37, model.config.hidden_size), torch.tensor([0.7] * 20 + [0.5] * 17)
    keys_T2 = torch.cat([draws(1).keys(20), draws(2).keys(17)])
    with torch.no_grad():
        logits_TV = model.logits(hidden_TH) / temperature_T[:, None]
    dist = torch.distributions.Categorical(logits=logits_TV)
    for chunk in (backends.CHUNK_BYTES, 4 * model.config.vocab_size * 8):
        backend.chunk_bytes = chunk
        found = backend.predict(hidden_TH, temperature_T, keys_T2, [20, 17])
        assert torch.equal(found.argmax_C, logits_TV.argmax(-1))
        assert torch.equal(found.candidate_C, draw(logits_TV, keys_T2))
        torch.testing.assert_close(found.entropy_C, dist.entropy())
        torch.testing.assert_close(found.confidence_C, dist.probs.amax(-1))
        torch.testing.assert_close(found.soft_CH, dist.probs @ model.decoder.embed_tokens.weight * model.embed_scale)


def test_low_temperatures_make_no_denormal_probabilities():
    """A product with them takes up to a hundred times as long on a CPU."""
    seen = []

    class Model:
        def expected_embedding(self, probability_TV):
            seen.append(probability_TV)
            return probability_TV[:, :8]

    logits_TV = torch.linspace(-300, 300, 512)[None]
    found = backends.summarize(Model(), logits_TV, torch.zeros(1, dtype=torch.long))
    assert (seen[0] >= torch.finfo(torch.float32).tiny).all()
    torch.testing.assert_close(seen[0], logits_TV.softmax(-1))
    expected = torch.distributions.Categorical(logits=logits_TV.double()).entropy()
    torch.testing.assert_close(found.entropy_C, expected.float())


@pytest.mark.parametrize("vocabulary", [4096, 100])  # whole blocks, and not
def test_argmax_is_the_first_of_equal_maxima(vocabulary):
    generator = torch.Generator().manual_seed(0)
    values_RV = torch.randint(0, 40, (64, vocabulary), generator=generator).float()  # many equal maxima
    values_RV[0] = -torch.inf
    values_RV[1, 70] = torch.nan
    assert torch.equal(argmax(values_RV), values_RV.argmax(-1))


# --- schedule -----------------------------------------------------------------------------------------------------


def test_temperature_falls_linearly_as_steps_run_out():
    settings = Diffusion(steps=4, t_max=0.8, t_min=0.4)
    assert [temperature(settings, n) for n in (4, 3, 2, 1)] == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert [alpha(settings, n) for n in (4, 2, 0)] == [0.0, 0.5, 1.0]


def test_presets_are_ordered_from_quality_to_fast():
    quality, balanced, fast = (PRESETS[name] for name in ("quality", "balanced", "fast"))
    assert quality.steps > balanced.steps > fast.steps
    assert quality.entropy_bound < balanced.entropy_bound < fast.entropy_bound
    assert quality.confidence < balanced.confidence < fast.confidence
    reference = Diffusion(steps=48, entropy_bound=0.1, t_max=0.8, t_min=0.4, stability=1, confidence=0.005)
    assert balanced == reference


# --- samplers -----------------------------------------------------------------------------------------------------


def prediction(entropy=None, confidence=None, candidate=None, argmax=None):
    size = next(len(values) for values in (entropy, confidence, candidate, argmax) if values is not None)

    def column(values, default):
        return torch.full((size,), default) if values is None else torch.as_tensor(values)

    return Prediction(column(candidate, 7), column(argmax, 8), column(confidence, 0.5), column(entropy, 1.0))


def test_entropy_bound_accepts_lowest_entropies_within_the_bound():
    torch.manual_seed(1)
    for bound in (0.05, 0.5, 3.0):
        entropy = torch.rand(64) ** 3
        next_C, accepted_C = EntropyBound(bound)(torch.zeros(64).long(), prediction(entropy), moment())
        expected, total = set(), 0.0
        for position in sorted(range(64), key=entropy.tolist().__getitem__):
            if total > bound:
                break
            expected.add(position)
            total += entropy[position].item()
        assert set(accepted_C.nonzero().flatten().tolist()) == expected
        noise_C = draws().tokens(64, 100)
        assert torch.equal(next_C, torch.where(accepted_C, torch.full((64,), 7), noise_C)), (
            "all other positions must be noise"
        )


def test_at_least_one_position_is_always_accepted():
    uncertain = prediction(entropy=[5.0, 4.0, 6.0], confidence=[0.1, 0.3, 0.2])
    assert EntropyBound(1e-6)(torch.zeros(3).long(), uncertain, moment())[1].tolist() == [False, True, False]
    assert at_least(uncertain.confidence_C, 0.9).tolist() == [False, True, False]


# --- stopping -----------------------------------------------------------------------------------------------------


def history(*steps):
    return [prediction(argmax=argmax, entropy=entropy) for argmax, entropy in steps]


ALL = torch.ones(2, dtype=torch.bool)
FIRST = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("stability", "judged", "stops"),
    [(0, ALL, True), (1, ALL, False), (1, FIRST, True), (2, FIRST, False), (3, FIRST, False)],
)
def test_stable_stopping_compares_the_last_steps(stability, judged, stops):
    steps = history(([9, 1], [0.1, 0.1]), ([1, 1], [0.1, 0.1]), ([1, 2], [0.1, 0.1]))
    assert bool(StableAndConfident(stability, 0.2)(steps, judged, Diffusion())) is stops


@pytest.mark.parametrize("stability", [0, 1, 3])
def test_a_canvas_converges_after_as_many_equal_predictions_as_stability_demands(stability):
    """The rule must get the earlier predictions that it compares."""
    process = Process(
        settings=Diffusion(steps=9, stability=stability, confidence=0.5, settle=0),
        source=HashSource(),
        seed=1,
        vocab_size=100,
        eos=frozenset(),
        device=CPU,
    )
    canvas = process.blank(0, 4, {})
    while canvas.reason is None:
        canvas = process.advance(canvas, prediction(entropy=[0.1] * 4))
    assert (canvas.step, canvas.reason) == (1 + stability, "converged")


def test_stable_stopping_needs_low_entropy():
    steps = history(([1, 1], [0.1, 0.5]), ([1, 1], [0.1, 0.5]))
    assert not StableAndConfident(1, 0.3)(steps, ALL, Diffusion()), "the mean entropy is 0.3: not below the bound"
    assert StableAndConfident(1, 0.31)(steps, ALL, Diffusion())


def test_fixed_steps_never_stop_early():
    assert not FixedSteps()(history(*[([1, 1], [0.0, 0.0])] * 20), ALL, Diffusion())


@pytest.mark.parametrize("stopping", STOPPINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_and_stopping_rule_terminates(tiny, sampler, stopping):
    answer = tiny.generate("abc", max_new_tokens=12, steps=5, sampler=sampler, stopping=stopping, seed=0)
    assert 1 <= answer.usage.denoising_steps <= 5 * (1 + answer.usage.redrawn)
    if stopping == "fixed":
        assert answer.usage.denoising_steps == 5 * (1 + answer.usage.redrawn)
    assert math.isfinite(answer.usage.tokens_per_step)

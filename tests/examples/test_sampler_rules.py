"""The rules of `examples/samplers`, against direct computations. C positions, V vocabulary."""

import functools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from examples.samplers import rules
from examples.samplers.rules import Ancestral, Credit, Ddim, InformedCorrector, Plateau, StableTokens, divergence
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import alpha, temperature
from gesso.engine.engine import Engine
from gesso.settings import Diffusion
from tests.engine_requests import SMALL, finish, other_requests, request, result
from tests.moments import draws
from tests.moments import moment as step_moment

SETTINGS = Diffusion(steps=10, t_max=0.8, t_min=0.4)
ALL = torch.ones(2, dtype=torch.bool)


def predicted(logits_CV, settings=SETTINGS, remaining=5):
    """Return the prediction for logits at a temperature of one."""
    logits_CV = logits_CV / temperature(settings, remaining)
    probability_CV = logits_CV.softmax(-1)
    confidence_C, argmax_C = probability_CV.max(-1)
    return Prediction(
        candidate_C=argmax_C,
        argmax_C=argmax_C,
        confidence_C=confidence_C,
        entropy_C=torch.distributions.Categorical(probs=probability_CV).entropy(),
        logits_CV=logits_CV,
        remaining=remaining,
    )


moment = functools.partial(step_moment, vocab_size=4, settings=SETTINGS)


def random_logits(steps, size, vocab_size=4):
    return torch.randn(steps, size, vocab_size, generator=torch.Generator().manual_seed(0)) * 2


def test_credit_raises_logits_of_tokens_that_were_predicted_before():
    steps = random_logits(12, 50)
    history = [predicted(logits_CV) for logits_CV in steps]
    sampler = Credit()
    confidence_C = sampler.confidence(history[-1], moment(history[-9:-1]))
    for position in range(50):
        credit_V = torch.zeros(4)
        for each in history[-9:]:
            credit_V *= 0.7
            credit_V[each.argmax_C[position]] += each.confidence_C[position] ** 0.5
        logits_V = steps[-1, position] / temperature(SETTINGS, 5) + 0.65 * torch.log(1 + credit_V)
        expected = logits_V.softmax(-1)[history[-1].argmax_C[position]]
        assert confidence_C[position].item() == pytest.approx(expected.item(), abs=1e-6)
    _, accepted_C = sampler(torch.zeros(50).long(), history[-1], moment(history[-9:-1]))
    assert torch.equal(accepted_C, confidence_C >= 0.9) and accepted_C.any() and not accepted_C.all()


def test_divergence_is_that_of_two_outcomes():
    before, now = (
        predicted(torch.tensor([[2.0, 0, 0, 0], [0, 3.0, 0, 0]])),
        predicted(torch.tensor([[3.0, 0, 0, 0]] * 2)),
    )
    same, changed = divergence(now, before).tolist()
    p, q = (torch.distributions.Bernoulli(each.confidence_C[0]) for each in (now, before))
    assert same == pytest.approx(torch.distributions.kl_divergence(p, q).item(), rel=1e-5)
    assert changed > 1 and divergence(now, now).abs().max() < 1e-6


def test_stable_tokens_need_confidence_and_an_unchanged_distribution():
    surest, sure, less_sure, unsure = ([gap, 0.0, 0.0, 0.0] for gap in (6.0, 5.0, 2.5, 0.1))
    before = predicted(torch.tensor([sure, surest, less_sure, unsure]))
    now = predicted(torch.tensor([sure, surest, sure, unsure]))
    sampler, canvas_C = StableTokens(), torch.zeros(4).long()
    assert sampler(canvas_C, now, moment([now]))[1].tolist() == [True, True, True, False]
    assert sampler(canvas_C, now, moment([before]))[1].tolist() == [True, True, False, False]
    assert sampler(canvas_C, now, moment())[1].tolist() == [False, True, False, False], "there is no step to compare"


def test_support_is_the_log_odds_of_the_leave_one_out_distribution():
    """Given leave-one-out distributions, the network's prediction follows by Bayes' rule for the observed token."""
    vocab_size, size, clean = 4, 20, 12
    loo_CV = random_logits(1, size)[0].softmax(-1)
    canvas_C = torch.randint(0, vocab_size, (size,), generator=torch.Generator().manual_seed(1))
    observed_CV = torch.full((size, vocab_size), (1 - clean / size) / vocab_size)
    observed_CV[torch.arange(size), canvas_C] += clean / size  # q(x | x_0 = v)
    now = predicted((loo_CV * observed_CV).log())
    support_C = InformedCorrector().support(canvas_C, now, moment((), torch.arange(size) < clean))
    tempered_CV = (loo_CV.double().log() / temperature(SETTINGS, 5)).softmax(-1)
    expected_C = tempered_CV.gather(-1, canvas_C[:, None])[:, 0].logit()
    torch.testing.assert_close(support_C, expected_C, atol=1e-4, rtol=1e-4)


def test_the_least_supported_repeated_tokens_return_to_noise():
    size, vocab_size = 20, 1000
    logits_CV = torch.zeros(size, 4)
    logits_CV[:, 1] = torch.linspace(1, 8, size)  # the higher, the better supported
    logits_CV[0, 1] = -1.0
    canvas_C = torch.ones(size).long()
    accepted_C = torch.ones(size).bool()
    accepted_C[1] = False  # holds noise, so it is not doubted
    now = predicted(logits_CV)
    steps = replace(SETTINGS, steps=5, entropy_bound=1e6)  # all steps are left: four fifths of a fifth of the canvas
    sampler, at = InformedCorrector(share=0.2), moment((), accepted_C, vocab_size=vocab_size, settings=steps)
    next_C, stays_C = sampler(canvas_C, now, at)
    # Position 0 would take another token than it holds.
    assert (~stays_C).nonzero().flatten().tolist() == [2, 3, 4, 5]
    noise_C = draws().tokens(size, vocab_size)
    assert torch.equal(next_C, torch.where(stays_C, now.candidate_C, noise_C))
    last = moment((), accepted_C, remaining=1, vocab_size=vocab_size, settings=steps)
    assert sampler(canvas_C, now, last)[1].all(), "the last step renoises none"
    assert sampler(canvas_C, now, moment(vocab_size=vocab_size, settings=steps))[1].all(), "nor does the first"


@pytest.mark.parametrize(
    "sampler",
    [Ancestral(), Ddim(), Ancestral(0.5), Ancestral(0.0)],
    ids=["ancestral", "ddim", "predictor-corrector", "corrector"],
)
@pytest.mark.parametrize("remaining", [10, 6, 2, 1])
def test_posterior_reverses_the_forward_marginals_by_one_step(sampler, remaining):
    """With x_t drawn from q(x_t | x_0) and the true x_0 as candidate, x_s must follow q(x_s | x_0)."""
    size, vocab_size, clean = 200_000, 4, 2
    now = moment(remaining=remaining, vocab_size=vocab_size)
    generator = torch.Generator().manual_seed(remaining)
    stays_C = torch.rand(size, generator=generator) < alpha(now.settings, remaining)
    x_t = torch.where(stays_C, clean, torch.randint(0, vocab_size, (size,), generator=generator))
    x_s, _ = sampler(x_t, certain(clean, size), now)
    clean_fraction = alpha(now.settings, remaining - 1)
    expected = torch.full((vocab_size,), (1 - clean_fraction) / vocab_size)
    expected[clean] += clean_fraction
    assert (x_s.bincount(minlength=vocab_size) / size - expected).abs().max() < 0.005


@pytest.mark.parametrize("predictor", [1.0, 0.3])
def test_posterior_probabilities_of_stay_clean_and_noise(predictor):
    """If x_t differs from the candidate, P(stay) and P(clean) follow from Bayes' rule. The corrector keeps no token."""
    size, remaining = 200_000, 4
    now = moment(remaining=remaining, vocab_size=10_000)
    a_t, a_s = alpha(now.settings, remaining), alpha(now.settings, remaining - 1)
    x_s, clean_C = Ancestral(predictor)(torch.full((size,), 1), certain(2, size), now)
    stay, clean = a_t / a_s * (1 - a_s) / (1 - a_t), (1 - a_t / a_s) * a_s / (1 - a_t)
    assert (x_s == 1).float().mean().item() == pytest.approx(predictor * stay, abs=0.005)
    assert clean_C.float().mean().item() == pytest.approx(predictor * clean + (1 - predictor) * a_s, abs=0.005)


def test_ddim_adds_no_noise():
    size, remaining = 200_000, 4
    now = moment(remaining=remaining, vocab_size=10_000)
    a_t, a_s = alpha(now.settings, remaining), alpha(now.settings, remaining - 1)
    counts = Counter(Ddim()(torch.full((size,), 1), certain(2, size), now)[0].tolist())
    assert counts[1] + counts[2] == size
    assert counts[1] / size == pytest.approx((1 - a_s) / (1 - a_t), abs=0.005)


def certain(token, size):
    """Return a prediction of one token everywhere."""
    token_C, zeros_C = torch.full((size,), token), torch.zeros(size)
    return Prediction(token_C, token_C, zeros_C + 1, zeros_C)


@pytest.mark.parametrize("rule", [rules.TopTwoGap, rules.GapSchedule])
@pytest.mark.parametrize("remaining", [10, 8, 7, 6, 4, 1])
def test_gap_rules_compare_the_mean_logit_gap_with_a_falling_threshold(rule, remaining):
    done = (10 - remaining + 1) / 10
    staged = 7.5 if done < 1 / 3 else 5.0 if done < 2 / 3 else 2.5
    threshold = staged if rule is rules.TopTwoGap else 7.5 - 5.0 * done
    judged_C = torch.tensor([True, True, False])
    for offset, stops in ((0.02, True), (-0.02, False)):
        # The first gap counts as 7.5, and the third position does not count.
        gap = min(2 * (threshold + offset) - 7.5, 7.4)
        if gap < 0:  # the argmax is another token then
            continue
        if gap == 7.4:
            stops = threshold <= 7.45
        now = predicted(torch.tensor([[20.0, 0, 0, 0], [gap, 0, 0, 0], [0.1, 0, 0, 0]]), remaining=remaining)
        assert rule()([now, now], judged_C, SETTINGS) is stops


def test_gap_rules_wait_until_the_argmax_is_stable():
    now, other = predicted(torch.tensor([[40.0, 0, 0, 0]])), predicted(torch.tensor([[0, 40.0, 0, 0]]))
    judged_C = torch.ones(1).bool()
    for rule in (rules.TopTwoGap(), rules.GapSchedule()):
        assert rule([now, now], judged_C, SETTINGS)
        assert not rule([other, now], judged_C, SETTINGS) and not rule([now], judged_C, SETTINGS)


def test_plateau_stops_when_the_entropy_no_longer_falls():
    def steps(*entropies):
        return [replace(certain(1, 2), entropy_C=torch.full((2,), entropy)) for entropy in entropies]

    falling = (3.0, 2.0, 1.5, 1.2, 1.0, 0.9, 0.8)
    assert not Plateau()(steps(*falling), ALL, SETTINGS)
    assert not Plateau()(steps(*falling, 0.8, 0.8, 0.8), ALL, SETTINGS)
    assert Plateau()(steps(*falling, 0.8, 0.8, 0.8, 0.8), ALL, SETTINGS)


@pytest.mark.parametrize("sampler", rules.SAMPLERS)
@pytest.mark.parametrize("stopping", rules.STOPPINGS)
def test_same_seed_same_text_in_any_batch(tiny, sampler, stopping):
    settings = replace(
        SMALL,
        sampler=rules.SAMPLERS[sampler],
        stopping=rules.STOPPINGS[stopping],
        t_max=0.1,
        t_min=0.05,
        settle=1,
        confidence=0.5,
    )
    wanted = request(seed=5, diffusion=settings, pins={3: 150})
    alone = result(Engine(tiny.model, tiny.decode), wanted)
    assert math.isfinite(alone.usage.tokens_per_step)
    engine = Engine(tiny.model, tiny.decode)
    ids = [engine.submit(each) for each in (*other_requests()[:3], wanted)]
    assert finish(engine, *ids)[-1][-1].result.tokens == alone.tokens

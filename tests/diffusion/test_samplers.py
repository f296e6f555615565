"""Samplers and stopping rules that read the most probable tokens, against direct computations.

C positions, V vocabulary. The vocabulary has as many tokens as a prediction shows, so nothing is left out.
"""

from dataclasses import replace

import pytest
import torch

from gesso.backends.torch import TorchBackend
from gesso.diffusion.canvas import FREE, Process
from gesso.diffusion.corrector import InformedCorrector, log_odds
from gesso.diffusion.moment import Moment
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import BLOCK, LIKELY, TOP, Prediction, top_tokens
from gesso.diffusion.remembering import Credit, StableTokens, divergence
from gesso.diffusion.schedule import temperature
from gesso.diffusion.stopping import GapSchedule, TopTwoGap
from gesso.engine.engine import Engine
from gesso.errors import InputError
from gesso.settings import Diffusion
from tests.engine_requests import SMALL, finish, other_requests, request, result

CPU = torch.device("cpu")
SETTINGS = Diffusion(steps=10, t_max=0.8, t_min=0.4)


def predicted(logits_CV, canvas_C=None, settings=SETTINGS, remaining=5):
    """Return the prediction for logits at a temperature of one."""
    probability_CV = (logits_CV / temperature(settings, remaining)).softmax(-1)
    top_CK = top_tokens(probability_CV)
    confidence_C, argmax_C = probability_CV.max(-1)
    current_C = None if canvas_C is None else probability_CV.gather(-1, canvas_C[:, None])[:, 0]
    return Prediction(
        candidate_C=argmax_C, argmax_C=argmax_C, confidence_C=confidence_C,
        entropy_C=torch.distributions.Categorical(probs=probability_CV).entropy(), top_CK=top_CK,
        top_probability_CK=probability_CV.gather(-1, top_CK), current_C=current_C, remaining=remaining,
    )  # fmt: skip


def moment(history=(), accepted_C=None, remaining=5, vocab_size=TOP, settings=SETTINGS):
    return Moment(settings, remaining, vocab_size, HashSource().at(1, 0, 0, CPU), history, accepted_C)


def random_logits(steps, size, vocab_size=TOP):
    return torch.randn(steps, size, vocab_size, generator=torch.Generator().manual_seed(0)) * 2


# --- credit -----------------------------------------------------------------------------------------------------------


def test_credit_raises_logits_of_tokens_that_were_predicted_before():
    steps = random_logits(12, 50)
    history = [predicted(logits_CV) for logits_CV in steps]
    sampler = Credit()
    found_C = sampler.confidence(history[-1], moment(history[:-1]))
    for position in range(50):
        credit_V = torch.zeros(TOP)
        for each in history[-9:]:
            credit_V *= 0.7
            credit_V[each.argmax_C[position]] += each.confidence_C[position] ** 0.5
        logits_V = steps[-1, position] / temperature(SETTINGS, 5) + 0.65 * torch.log(1 + credit_V)
        expected = logits_V.softmax(-1)[history[-1].argmax_C[position]]
        assert found_C[position].item() == pytest.approx(expected.item(), abs=1e-6)
    _, accepted_C = sampler(torch.zeros(50).long(), history[-1], moment(history[:-1]))
    assert torch.equal(accepted_C, found_C >= 0.9) and accepted_C.any() and not accepted_C.all()


def test_credit_accepts_a_repeated_prediction_below_the_threshold():
    now = predicted(torch.tensor([[2.0, 1.0, 0.0, 0.0]] * 2))
    other = predicted(torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0]]))
    assert now.confidence_C[0] < 0.9
    sampler = Credit(threshold=now.confidence_C[0].item() + 0.06)
    next_C, accepted_C = sampler(torch.zeros(2).long(), replace(now, candidate_C=torch.ones(2).long()), moment([other]))
    assert accepted_C.tolist() == [True, False]
    assert next_C[0] == 0, "it takes the argmax, not the candidate"


# --- stable tokens ----------------------------------------------------------------------------------------------------


def test_divergence_is_exact_if_the_top_tokens_are_the_vocabulary():
    p_CV, q_CV = (logits_CV / temperature(SETTINGS, 5) for logits_CV in random_logits(2, 50))
    exact_C = torch.distributions.kl_divergence(*(torch.distributions.Categorical(logits=x) for x in (p_CV, q_CV)))
    found_C = divergence(*(predicted(logits_CV) for logits_CV in random_logits(2, 50)))
    torch.testing.assert_close(found_C, exact_C, atol=1e-5, rtol=1e-5)


def test_divergence_of_predictions_without_a_common_token_is_large():
    first, second = torch.zeros(2, 1, 10)
    first[0, :4], second[0, 6:] = 9.0, 9.0
    assert divergence(predicted(first), predicted(second)).item() > 1
    assert divergence(predicted(first), predicted(first)).item() == pytest.approx(0, abs=1e-6)


def test_stable_tokens_need_confidence_and_an_unchanged_distribution():
    surest, sure, less_sure, unsure = ([gap, 0.0, 0.0, 0.0] for gap in (6.0, 5.0, 2.5, 0.1))
    before = predicted(torch.tensor([sure, surest, less_sure, unsure]))
    now = predicted(torch.tensor([sure, surest, sure, unsure]))
    sampler, canvas_C = StableTokens(memory=2), torch.zeros(4).long()
    assert sampler(canvas_C, now, moment([now, now]))[1].tolist() == [True, True, True, False]
    for history in ([before, now], [now, before]):
        assert sampler(canvas_C, now, moment(history))[1].tolist() == [True, True, False, False]
    assert sampler(canvas_C, now, moment([now]))[1].tolist() == [False, True, False, False], (
        "there is no step to compare"
    )


# --- informed corrector -----------------------------------------------------------------------------------------------


def test_support_is_the_log_odds_of_the_leave_one_out_distribution():
    """Given leave-one-out distributions, the network's prediction follows by Bayes' rule for the observed token."""
    vocab_size, size, clean = 4, 20, 12
    loo_CV = random_logits(1, size)[0].softmax(-1)
    canvas_C = torch.randint(0, vocab_size, (size,), generator=torch.Generator().manual_seed(1))
    alpha = clean / size
    observed_CV = torch.full((size, vocab_size), (1 - alpha) / vocab_size)
    observed_CV[torch.arange(size), canvas_C] += alpha  # q(x | x_0 = v)
    now = predicted((loo_CV * observed_CV).log(), canvas_C)
    accepted_C = torch.arange(size) < clean
    found_C = InformedCorrector(0.1).support(canvas_C, now, moment((), accepted_C))
    tempered_CV = (loo_CV.double().log() / temperature(SETTINGS, 5)).softmax(-1)
    expected_C = tempered_CV.gather(-1, canvas_C[:, None])[:, 0].logit()
    torch.testing.assert_close(found_C, expected_C, atol=1e-4, rtol=1e-4)


def test_log_odds_of_nearly_certain_tokens_keep_their_digits():
    canvas_C, logits_CV = torch.zeros(1).long(), torch.tensor([[20.0, 0.0, -5.0, -9.0]])
    now = predicted(logits_CV, canvas_C)
    assert now.current_C.item() == 1.0
    assert log_odds(canvas_C, now).item() == pytest.approx(20 / temperature(SETTINGS, 5), rel=1e-3)


def test_the_least_supported_repeated_tokens_return_to_noise():
    size, vocab_size = 20, 1000
    logits_CV = torch.zeros(size, TOP)
    logits_CV[:, 1] = torch.linspace(1, 8, size)  # the higher, the better supported
    logits_CV[0, 1] = 0.0
    canvas_C = torch.ones(size).long()
    accepted_C = torch.ones(size).bool()
    accepted_C[1] = False  # holds noise, so it is not doubted
    now = predicted(logits_CV, canvas_C)
    sampler = InformedCorrector(bound=1e6, share=0.2)
    steps = replace(SETTINGS, steps=5)  # all steps are left: four fifths of a fifth of the canvas
    next_C, kept_C = sampler(canvas_C, now, moment((), accepted_C, vocab_size=vocab_size, settings=steps))
    support_C = sampler.support(canvas_C, now, moment((), accepted_C, vocab_size=vocab_size, settings=steps))
    assert (support_C[2:6] < 0).all()
    # Position 0 would take another token than it holds.
    assert (~kept_C).nonzero().flatten().tolist() == [2, 3, 4, 5]
    noise_C = HashSource().at(1, 0, 0, CPU).tokens(size, vocab_size)
    assert torch.equal(next_C, torch.where(kept_C, now.candidate_C, noise_C))
    last = moment((), accepted_C, remaining=1, vocab_size=vocab_size, settings=steps)
    assert sampler(canvas_C, now, last)[1].all(), "the last step renoises none"
    assert sampler(canvas_C, now, moment(vocab_size=vocab_size))[1].all(), "nor does the first"


# --- gaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [TopTwoGap, GapSchedule])
@pytest.mark.parametrize("remaining", [10, 8, 7, 6, 4, 1])
def test_gap_rules_compare_the_mean_logit_gap_with_a_falling_threshold(rule, remaining):
    done = (10 - remaining + 1) / 10
    staged = 7.5 if done < 1 / 3 else 5.0 if done < 2 / 3 else 2.5
    threshold = staged if rule is TopTwoGap else 7.5 - 5.0 * done
    judged_C = torch.tensor([True, True, False])
    for offset, stops in ((0.02, True), (-0.02, False)):
        # The first gap counts as 7.5, and the third position does not count.
        gap = min(2 * (threshold + offset) - 7.5, 7.4)
        logits_CV = torch.tensor([[20.0, 0, 0, 0], [gap, 0, 0, 0], [0.1, 0, 0, 0]])
        if gap < 0:  # the argmax is another token then
            continue
        now = predicted(logits_CV, remaining=remaining)
        if gap == 7.4:
            stops = threshold <= 7.45
        assert bool(rule(SETTINGS)([now, now], judged_C)) is stops


def test_gap_rules_wait_until_the_argmax_is_stable():
    now, other = predicted(torch.tensor([[40.0, 0, 0, 0]])), predicted(torch.tensor([[0, 40.0, 0, 0]]))
    judged_C = torch.ones(1).bool()
    for rule in (TopTwoGap(SETTINGS), GapSchedule(SETTINGS)):
        assert rule([now, now], judged_C)
        assert not rule([other, now], judged_C) and not rule([now], judged_C)
    assert TopTwoGap(replace(SETTINGS, stability=0))([other, now], judged_C)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_top_tokens_and_current_probability_follow_from_the_logits(tiny):
    torch.manual_seed(0)
    hidden_TH, temperature_T = torch.randn(9, tiny.config.hidden_size), torch.linspace(0.4, 2, 9)
    current_T, keys_T2 = torch.randint(0, tiny.config.vocab_size, (9,)), HashSource().at(1, 0, 0, CPU).keys(9)
    found = TorchBackend(tiny.model).predict(hidden_TH, temperature_T, keys_T2, [4, 5], True, True, current_T)
    with torch.no_grad():
        probability_TV = (tiny.model.logits(hidden_TH) / temperature_T[:, None]).softmax(-1)
    expected = probability_TV.topk(TOP, -1)
    assert torch.equal(found.top_CK, expected.indices)
    torch.testing.assert_close(found.top_probability_CK, expected.values)
    torch.testing.assert_close(found.current_C, probability_TV[torch.arange(9), current_T])


def test_equal_tokens_are_in_ascending_order():
    assert top_tokens(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])).tolist() == [[1, 3, 2, 4]]


@pytest.mark.parametrize("levels", [2, 50, 100_000], ids=lambda levels: f"{levels} values")
def test_top_tokens_are_the_first_of_a_stable_sort(levels):
    """Few values: most tokens are equal. Without blocks, with as many as tokens to find, and with more."""
    for vocabulary in (LIKELY * BLOCK + 1, LIKELY * BLOCK, 40 * BLOCK):
        values_RV = torch.randint(0, levels, (5, vocabulary)).float()
        expected_RK = values_RV.sort(dim=-1, descending=True, stable=True).indices[:, :LIKELY]
        assert torch.equal(top_tokens(values_RV, LIKELY), expected_RK)


def test_pins_are_certain_in_the_statistics():
    settings = Diffusion(steps=10, sampler="informed-corrector")
    process = Process(settings=settings, source=HashSource(), seed=0, vocab_size=TOP, eos=frozenset(), device=CPU)
    canvas = process.blank(0, 3, {1: 2})
    assert (canvas.pin_C == torch.tensor([FREE, 2, FREE])).all()
    seen = predicted(random_logits(1, 3)[0], canvas.tokens_C)
    now = process.evolve(canvas, seen).history[-1]
    assert now.top_CK[1, 0] == 2 and now.top_probability_CK[1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert now.current_C[1] == 1.0
    assert torch.equal(now.top_probability_CK[[0, 2]], seen.top_probability_CK[[0, 2]])


def test_a_sampler_gets_the_statistics_it_needs_and_no_others(tiny):
    seen = []

    def watching(needs):
        def sampler(canvas_C, prediction, moment):
            seen.append(
                {name for name in ("top_CK", "current_C", "logits_CV") if getattr(prediction, name) is not None}
            )
            return prediction.candidate_C, torch.ones_like(canvas_C, dtype=torch.bool)

        sampler.needs = needs
        return sampler

    every = [set(), {"top"}, {"current"}, {"top", "current", "logits"}]
    settings = [replace(SMALL, steps=1, sampler=watching(needs)) for needs in every]
    engine = Engine(tiny.model, tiny.decode)
    wanted = [request(seed=seed, max_new_tokens=8, diffusion=each) for seed, each in enumerate(settings)]
    finish(engine, *(engine.submit(each) for each in wanted))  # in one batch
    fields = {"top": "top_CK", "current": "current_C", "logits": "logits_CV"}
    assert sorted(map(sorted, seen)) == sorted(sorted(fields[need] for need in needs) for needs in every)


def test_unknown_needs_are_rejected(tiny):
    def sampler(canvas_C, prediction, moment):
        raise AssertionError

    sampler.needs = {"topmost"}
    with pytest.raises(InputError, match="top, current, logits, got .*topmost"):
        tiny.generate("a", sampler=sampler, max_new_tokens=4)


# --- in the engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "stopping"),
    [
        ("stable-tokens", "top-2-gap"),
        ("credit", "schedule"),
        ("informed-corrector", "top-2-gap"),
        ("predictor-corrector", "schedule"),
    ],
)
def test_same_seed_same_text_in_any_batch(tiny, sampler, stopping):
    settings = replace(SMALL, sampler=sampler, stopping=stopping, t_max=0.1, t_min=0.05, settle=1, confidence=0.5)
    wanted = request(seed=5, diffusion=settings, pins={3: 150})
    alone = result(Engine(tiny.model, tiny.decode), wanted).tokens
    engine = Engine(tiny.model, tiny.decode)
    ids = [engine.submit(each) for each in (*other_requests()[:3], wanted)]
    assert finish(engine, *ids)[-1][-1].result.tokens == alone

"""The search finds the most likely text that matches a constraint."""

import itertools
from collections.abc import Generator

import numpy as np
import pytest
import torch

from gesso.constraints.automaton import START, Automaton
from gesso.constraints.budget import complete, pausing
from gesso.constraints.guide import Guide
from gesso.constraints.reach import Reach
from gesso.constraints.regex import regex_term
from gesso.constraints.search import BEAM, Scores, likeliest, search
from gesso.constraints.terms import ANYTHING, literal, seq
from gesso.constraints.words import Words
from gesso.diffusion.prediction import LIKELY
from gesso.engine import guided


def best_of(*arguments, **options) -> list:
    """Return the tokens that the search of `search_of` finds."""
    return complete(search_of(*arguments, **options))[0].tolist()


def search_of(
    guide: Guide, logits_CV: np.ndarray, top: int, after: int = 0, pins: dict[int, int] | None = None
) -> Generator:
    """Return the search for the tokens of a canvas, if `after` more tokens may follow it."""
    order_CK = np.argsort(-logits_CV, axis=1)[:, :top]
    top_CK = np.take_along_axis(logits_CV, order_CK, axis=1)
    fill = np.array(sorted(guide.eos | guide.padding))
    fill_C = fill[logits_CV[:, fill].argmax(axis=1)]
    reach = Reach(guide, pins or {}, len(logits_CV) + after)
    scores = Scores(order_CK, top_CK, fill_C, logits_CV[:, fill].max(axis=1), lambda tokens: logits_CV[:, tokens])
    return search(reach, START, 0, scores)


def random_logits(vocab_size: int, length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(length, vocab_size)).astype(np.float32)


@pytest.mark.parametrize("regex", ["ab?c?|de", "(ab|c){1,3}", "[ab]*", "x(y|z)?|yx"])
def test_search_finds_most_likely_matching_text(guide_of, tiny, regex):
    """Compare with all sequences of the tokens that can occur. The automaton has few states, so the beam is exact."""
    guide = guide_of(regex)
    assert guide.automaton.fill_all(BEAM)
    usable = sorted(
        {t for s in range(START, len(guide.automaton)) for t, _ in guide.words.after(guide.automaton, s, 999)}
    )
    ends = sorted(guide.eos)
    for seed in range(5):
        logits_CV = random_logits(tiny.config.vocab_size, 3, seed)
        best = best_of(guide, logits_CV, tiny.config.vocab_size)
        fill_C = logits_CV[:, sorted(guide.eos | guide.padding)].max(axis=1)
        highest = -np.inf
        for length in range(4):
            for tokens in itertools.product(usable, repeat=length):
                if guide.may_end(guide.walk(START, tokens)):
                    score = sum(logits_CV[i, t] for i, t in enumerate(tokens))
                    if length < 3:
                        score += max(logits_CV[length, e] for e in ends) + fill_C[length + 1 :].sum()
                    highest = max(highest, float(score))
        assert guide.may_end(guide.walk(START, best))
        assert sum(float(logits_CV[i, t]) for i, t in enumerate(best)) == pytest.approx(highest, abs=1e-4)


@pytest.mark.parametrize("regex", [r'\{"a":"[^"\\]*","b":[0-9]+\}', r"(é|日|a){9}", r"[^\n]{9,30}\n", "(?s).{3,}"])
def test_search_result_matches_at_any_length(guide_of, tiny, regex):
    guide = guide_of(regex)
    for length, seed in itertools.product((guide.shortest, guide.shortest + 1, 40), range(3)):
        logits_CV = random_logits(tiny.config.vocab_size, length, seed)
        for after in (0, 5):
            best = best_of(guide, logits_CV, LIKELY, after)
            assert Reach(guide, {}, length + after).fits(0, START, best)


def test_search_that_pauses_after_every_state_finds_the_same_text(guide_of, tiny):
    regex, logits_CV = "[a-z]{2,9}(, [a-z]+|; [0-9]{1,3})*", random_logits(tiny.config.vocab_size, 12, seed=1)
    guide = guide_of(regex)
    expected, parts = best_of(guide_of(regex), logits_CV, LIKELY), []
    for _ in range(2):
        pausable, count = search_of(guide, logits_CV, LIKELY), 0
        with pausing(lambda: True), pytest.raises(StopIteration) as end:
            while True:
                next(pausable)
                count += 1
        assert end.value.value[0].tolist() == expected
        parts.append(count)
    assert parts[0] > parts[1]  # the second search makes no states


def test_confident_position_outweighs_uncertain_positions(guide_of, tiny):
    """The first position predicts "y". All others are noise, under which the shorter text is more likely."""
    guide = guide_of("n|y" + "o" * 12)
    logits_CV = torch.from_numpy(random_logits(tiny.config.vocab_size, 16, seed=0)) * 2
    logits_CV[:, guide.words.token_of[b"o"]] -= 2
    logits_CV[0] = -20
    logits_CV[0, guide.words.token_of[b"y"]] = 0
    logits_CV[0, guide.words.token_of[b"n"]] = -6
    entropy_C = torch.distributions.Categorical(logits=logits_CV).entropy()
    for weighed, first in ((entropy_C, b"y"), (torch.zeros(16), b"n")):
        scores = guided.scores_of(guided.Candidates.of(logits_CV), weighed.numpy(), guide)
        best, _ = likeliest(Reach(guide, {}, 16), START, 0, scores)
        assert guide.words.bytes_of[int(best[0])] == first


def test_longer_text_wins_if_end_of_text_is_unlikely(guide_of, tiny):
    """The text may end after one token. The long text is unlikely, but an early end is even less likely."""
    guide = guide_of("n|yoooooooo")
    logits_CV = np.zeros((12, tiny.config.vocab_size), np.float32)
    logits_CV[:, guide.words.token_of[b"o"]] = -1
    logits_CV[2:9, [0, *guide.eos]] = -5
    best = best_of(guide, logits_CV + random_logits(tiny.config.vocab_size, 12, seed=1) / 100, LIKELY)
    assert guide.words.bytes_of[best[0]] == b"y"


def test_the_rest_of_a_text_that_may_be_anything_has_its_most_likely_tokens(guide_of, tiny):
    words, eos = guide_of("x").words, guide_of("x").eos
    guide = Guide(Automaton(seq(literal("x"), ANYTHING)), words, eos)
    logits_CV = random_logits(tiny.config.vocab_size, 6, seed=0)
    best = best_of(guide, logits_CV, LIKELY)
    assert words.bytes_of[best[0]] == b"x" and best[1:] == logits_CV.argmax(axis=1)[1:].tolist()


def test_long_tokens_are_valid_but_no_candidates():
    words = Words({2: b" " * 24, **{3 + byte: bytes([byte]) for byte in range(128)}}, 140)
    guide = Guide(Automaton(regex_term("(?s).*")), words, frozenset([1]))
    assert guide.may_end(guide.walk(START, [2, 2, 40]))
    assert 2 not in {token for token, _ in words.after(guide.automaton, START, 999)}


@pytest.mark.parametrize("regex", [r"[a-z]{3,40}", r"[a-z0-9 ]*"])
def test_search_with_most_likely_tokens_without_text(guide_of, tiny, regex):
    """If a vocabulary is larger than the tokenizer, most of the additional ids have no text."""
    guide = guide_of(regex)
    silent = [token for token in range(tiny.config.vocab_size) if guide.words.length_V[token] == 0][:LIKELY]
    assert len(silent) == LIKELY
    logits_CV = random_logits(tiny.config.vocab_size, 6, seed=0)
    logits_CV[:, silent] += 100
    best = best_of(guide, logits_CV, LIKELY)
    assert Reach(guide, {}, 6).fits(0, START, best)


def test_a_forced_end_does_not_outvote_the_text_before_it():
    """As measured for `np` and the letters `p`, `x` where a line break is expected: all of these logits are faint."""
    below_best_CU = np.array([[0, -4, -16, -14], [-14, -18, -14, -18]], np.float32)  # np, p, x, end
    np_end, p_x = guided._above_noise(below_best_CU)[[0, 1, 0, 1], [0, 3, 1, 2]].reshape(2, 2).sum(axis=1)
    assert np_end > p_x


def test_faint_logits_keep_their_order():
    below_best_CU = np.array([[0, -4, -5.9, -6.1, -8, -30]], np.float32)
    above_CU = guided._above_noise(below_best_CU)
    assert (np.diff(above_CU) < 0).all()
    assert (above_CU[:, :3] == below_best_CU[:, :3]).all()

"""Candidates for a hole: several are generated, and the likeliest fills it."""

import pytest

from gesso import InputError
from tests.likelihood import Likelihood

BEFORE, AFTER = "def f(x):\n", "\nprint(f(2))\n"
BRIEF = {"steps": 2, "canvas_length": 24, "max_new_tokens": 6}


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_one_candidate_is_the_default(marked, method):
    plain = marked.infill(BEFORE, AFTER, method=method, seed=4, **BRIEF)
    assert marked.infill(BEFORE, AFTER, method=method, seed=4, candidates=1, **BRIEF) == plain


def test_candidates_have_consecutive_seeds_and_the_likeliest_wins(marked):
    out = marked.infill(BEFORE, AFTER, seed=2**64 - 2, candidates=4, **BRIEF)
    seeds = [2**64 - 2, 2**64 - 1, 0, 1]
    alone = [marked.infill(BEFORE, AFTER, seed=seed, **BRIEF) for seed in seeds]
    assert out.method == "prompt"
    assert [candidate.text for candidate in out.candidates] == [one.text for one in alone]
    assert len({one.text for one in alone}) > 1
    likelihood = Likelihood(marked.model, marked.tokenizer.encode(BEFORE))
    for candidate in out.candidates:
        ids = marked.tokenizer.encode(candidate.text + AFTER, bos=False)
        assert candidate.log_likelihood == pytest.approx(likelihood.of(ids), rel=1e-5)
    best = max(out.candidates, key=lambda candidate: candidate.log_likelihood)
    winner = alone[out.candidates.index(best)]
    assert (out.text, out.tokens, out.finish_reason) == (winner.text, winner.tokens, winner.finish_reason)
    assert out.usage.denoising_steps == sum(one.usage.denoising_steps for one in alone)
    assert out.seed == seeds[0], "this seed repeats the result"


def test_pinned_hole_has_the_likeliest_candidate_of_each_length(marked):
    ask = {"method": "pinned", "lengths": [1, 3], **BRIEF}
    out = marked.infill(BEFORE, AFTER, seed=7, candidates=3, **ask)
    alone = [marked.infill(BEFORE, AFTER, seed=seed, **ask).candidates for seed in (7, 8, 9)]
    for i, candidate in enumerate(out.candidates):
        assert candidate == max((tried[i] for tried in alone), key=lambda tried: tried.log_likelihood)
    assert out.text == max(out.candidates, key=lambda candidate: candidate.log_likelihood).text


def test_dropped_end_of_the_prefix_counts_in_the_score(marked):
    """`pri` is dropped from the prompt. The score is of the text with `pri`, after the kept prompt."""
    out = marked.infill("x = pri", AFTER, seed=1, candidates=3, **BRIEF)
    kept, dropped = marked.healer.split("x = pri")
    likelihood = Likelihood(marked.model, marked.tokenizer.encode(kept))
    for candidate in out.candidates:
        ids = marked.tokenizer.encode(dropped + candidate.text + AFTER, bos=False)
        assert candidate.log_likelihood == pytest.approx(likelihood.of(ids), rel=1e-5)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_invalid_number_of_candidates_is_rejected(marked, count):
    with pytest.raises(InputError, match="candidates must be"):
        marked.infill(BEFORE, AFTER, candidates=count, **BRIEF)

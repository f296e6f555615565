"""Candidates for a hole: several are written, and the likeliest fills it."""

import pytest

from gesso import InputError
from tests.likelihood import Likelihood

BEFORE, AFTER = "def f(x):\n", "\nprint(f(2))\n"
BRIEF = {"steps": 2, "canvas_length": 24, "max_new_tokens": 6}


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_one_candidate_is_what_there_was_without_the_option(marked, method):
    plain = marked.infill(BEFORE, AFTER, method=method, seed=4, **BRIEF)
    assert marked.infill(BEFORE, AFTER, method=method, seed=4, candidates=1, **BRIEF) == plain


def test_candidates_are_those_of_the_next_seeds_and_the_likeliest_wins(marked):
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
    assert out.seed == seeds[0], "which gives the same again"


def test_a_pinned_hole_has_the_likeliest_of_each_length(marked):
    ask = {"method": "pinned", "lengths": [1, 3], **BRIEF}
    out = marked.infill(BEFORE, AFTER, seed=7, candidates=3, **ask)
    alone = [marked.infill(BEFORE, AFTER, seed=seed, **ask).candidates for seed in (7, 8, 9)]
    for i, candidate in enumerate(out.candidates):
        assert candidate == max((tried[i] for tried in alone), key=lambda tried: tried.log_likelihood)
    assert out.text == max(out.candidates, key=lambda candidate: candidate.log_likelihood).text


def test_the_end_of_a_prefix_that_is_written_anew_counts_as_what_it_is(marked):
    """`pri` is taken off the prompt: what is judged is the text with it, after what is left."""
    out = marked.infill("x = pri", AFTER, seed=1, candidates=3, **BRIEF)
    kept, dropped = marked.healer.split("x = pri")
    likelihood = Likelihood(marked.model, marked.tokenizer.encode(kept))
    for candidate in out.candidates:
        ids = marked.tokenizer.encode(dropped + candidate.text + AFTER, bos=False)
        assert candidate.log_likelihood == pytest.approx(likelihood.of(ids), rel=1e-5)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_candidates_that_are_no_count_are_refused(marked, count):
    with pytest.raises(InputError, match="candidates must be"):
        marked.infill(BEFORE, AFTER, candidates=count, **BRIEF)

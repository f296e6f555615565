"""Successive halving on a fake evaluator whose truth is known."""

import random
import time

import pytest

from gesso.eval.tune.search import (
    DEFAULT,
    FINALISTS,
    Goal,
    Measured,
    Table,
    affordable,
    chance,
    choice,
    dominated,
    front,
    rounds,
    search,
    spread,
    standing,
    survivors,
)

GOAL = Goal(scores=("exact",), tolerance=0.02, held_out=500)


class Fake:
    """Answers with a given probability of success and mean number of passes per candidate.

    An item is as hard for all candidates, and their luck is independent.
    """

    def __init__(self, truth: list[tuple[float, float]], noise: float = 1.0) -> None:
        self.truth, self.noise, self.calls = truth, noise, []

    def __call__(self, candidates, items):
        self.calls.append((list(candidates), len(items)))
        for item in items:
            hard = random.Random(f"item {item}").random()
            for one in candidates:
                quality, passes = self.truth[one]
                luck = random.Random(f"{one} {item}")
                right = float(0.9 * hard + 0.1 * luck.random() < quality)
                yield one, item, Measured({"exact": right}, max(1, passes + luck.gauss(0, self.noise)))


def grid() -> list[tuple[float, float]]:
    """The default, one candidate that halves the passes at the same quality, and others that do not."""
    rng = random.Random(1)
    bad = [(rng.uniform(0.3, 0.6), rng.uniform(2, 20)) for _ in range(15)]
    slow = [(rng.uniform(0.7, 0.85), rng.uniform(19, 40)) for _ in range(8)]
    return [(0.8, 20.0), *bad[:7], (0.8, 10.0), *bad[7:], *slow]


BEST = 8


def test_halving_keeps_the_best_candidate_and_chooses_it():
    fake = Fake(grid())
    found = search(fake, len(fake.truth), 128, GOAL)
    assert BEST in found.alive and DEFAULT in found.alive
    assert choice(found, GOAL) == BEST
    counts = [len(candidates) for candidates, _ in fake.calls]
    assert counts == sorted(counts, reverse=True) and counts[0] == 25 and counts[-1] <= FINALISTS + 1
    assert sum(items for _, items in fake.calls) <= 128
    assert sum(n * items for n, (_, items) in zip(counts, fake.calls, strict=True)) < 25 * 128 / 3


def test_the_same_answers_give_the_same_search():
    one, two = (search(Fake(grid()), 25, 64, GOAL) for _ in range(2))
    assert (one.rounds, one.alive, one.table.answers) == (two.rounds, two.alive, two.table.answers)


def test_the_default_is_chosen_if_no_candidate_takes_fewer_passes():
    fake = Fake([(0.8, 10.0)] * 12)
    assert choice(search(fake, 12, 64, GOAL), GOAL) == DEFAULT


def test_fewer_passes_at_a_much_lower_quality_are_not_chosen_over_some_at_the_same():
    fake = Fake([(0.8, 20.0), (0.5, 2.0), (0.8, 14.0)])
    assert choice(search(fake, 3, 128, GOAL), GOAL) == 2


def test_rounds_double_up_to_the_count():
    assert rounds(128) == [8, 16, 32, 64, 128]
    assert rounds(100)[-1] == 100 and rounds(100)[0] <= 8
    assert rounds(5) == [5]


def table(*candidates: list[tuple[float, float]]) -> Table:
    """Return a table of (score, passes) per item of each candidate."""
    found = Table()
    for one, answers in enumerate(candidates):
        for item, (score, passes) in enumerate(answers):
            found.add(one, item, Measured({"exact": score}, passes))
    return found


def test_domination_needs_a_difference_beyond_noise():
    base = [(1.0, 10.0 + i % 3) for i in range(30)]
    faster = [(1.0, 5.0 + i % 2) for i in range(30)]
    noisy = [(1.0, 9.9 + 8 * (i % 2) - 4) for i in range(30)]
    found = table(base, faster, noisy)
    assert dominated(found, 0, [1]) and not dominated(found, 1, [0, 2]) and not dominated(found, 0, [2])
    assert front(found, [0, 1, 2]) == [1]
    change = standing(found, 1, bounded=True)
    assert (change.count, change.scores["exact"].mean) == (30, 0)
    assert change.ratio.mean == pytest.approx(5.5 / 11) and change.passes.high < 0


def test_survivors_are_the_highest_expected_savings_and_the_best_quality():
    def noise(one: int, item: int) -> int:
        """Return ±1: independent of the noise of other candidates, with a mean of 0 over 32 items."""
        return 1 - 2 * ((one + 1 & item).bit_count() % 2)

    found = table(
        *(
            [(0.5 + 0.02 * (one == 2) + 0.1 * noise(one, i), 60 - 2 * one + 25 * noise(one, i)) for i in range(32)]
            for one in range(7)
        )
    )
    assert not any(dominated(found, one, range(7)) for one in range(7))
    assert survivors(found, range(7), 3, GOAL) == [DEFAULT, 2, 5, 6]
    assert survivors(found, range(7), 6, GOAL) == list(range(7))


def test_the_chance_of_confirmation_grows_with_the_difference_and_the_held_out_items():
    worse, same, better = (
        standing(table([(0.5, 1.0)] * 40, [(0.5 + shift + (i % 5 - 2) / 10, 1.0) for i in range(40)]), 1, True)
        for shift in (-0.1, 0.0, 0.1)
    )
    chances = [chance(one.scores["exact"], one.count, GOAL) for one in (worse, same, better)]
    assert chances == sorted(chances) and chances[0] < 0.01 and chances[2] > 0.9
    few = Goal(scores=("exact",), tolerance=0.02, held_out=50)
    assert chance(same.scores["exact"], 40, few) < chances[1]


def test_a_failing_candidate_is_dropped_with_its_error():
    def failing(candidates, items):
        for one, item, answer in Fake([(0.8, 20.0), (0.8, 10.0), (0.8, 5.0)])(candidates, items):
            yield one, item, RuntimeError("no such canvas") if one == 2 else answer

    found = search(failing, 3, 64, GOAL)
    assert choice(found, GOAL) == 1 and found.table.errors == {2: "no such canvas"}
    assert 2 not in found.alive


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 10.0])
def test_a_search_in_limited_time_has_as_many_items_and_candidates_as_fit(monkeypatch, seconds):
    """One answer takes `seconds`; in 200 seconds there is time for 4000, 667, 200 or 20 answers."""
    fake, clock, asked = Fake(grid()), [0.0], []

    def timed(candidates, items):
        for one, item, answer in fake(candidates, items):
            clock[0] += seconds
            asked.append((one, item))
            yield one, item, answer

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    found = search(timed, 25, 128, GOAL, until=200.0)
    assert len(asked) == len(set(asked)), "no answer is measured twice"
    assert clock[0] <= 200 + seconds
    if seconds == 10:  # not even the fewest candidates finish the first round
        assert found.ended == "time" and len(found.alive) == FINALISTS + 1
        return
    first, items = found.rounds[0][1], found.rounds[-1][0]
    assert found.ended is None and items == {0.05: 128, 0.3: 64, 1.0: 16}[seconds]
    assert first[0] == DEFAULT and len(first) == {0.05: 25, 0.3: 25, 1.0: 15}[seconds]
    assert found.table.common(found.alive) == list(range(items))


def test_fewer_candidates_are_a_selection_of_all_kinds():
    assert spread(25, 25) == list(range(25))
    assert spread(25, 5) == [0, 1, 7, 13, 19]
    assert affordable(25, 0, [8, 16], 1000) == 25
    # 8 items of n candidates, then 8 of the default and half of the others.
    assert affordable(25, 0, [8, 16], 8 * 17 + 8 * 9) == 17
    assert affordable(25, 0, [8, 16], 0) == FINALISTS + 1 and affordable(3, 0, [8], 0) == 3


def test_time_and_interrupts_keep_the_answers_so_far():
    fake = Fake(grid())
    assert (found := search(fake, 25, 128, GOAL, until=time.monotonic() - 1)).ended == "time"
    assert len(found.table.answers) == 1

    def interrupted(candidates, items):
        for number, answer in enumerate(fake(candidates, items)):
            if items.start >= 16 and number > 20:
                raise KeyboardInterrupt
            yield answer

    found = search(interrupted, 25, 128, GOAL)
    assert found.ended == "interrupt" and [count for count, _ in found.rounds] == [8, 16]
    assert choice(found, GOAL) == BEST

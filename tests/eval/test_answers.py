"""Several tries per item: attempts one after another, candidates side by side."""

import json
from dataclasses import replace

import pytest

from gesso import InputError
from gesso.eval import PythonInfill, Sudoku, task
from gesso.eval.evaluate import evaluate
from gesso.eval.python_infill import prompt as fill_prompt
from gesso.eval.sudoku.grid import is_valid, parse_puzzle, solves
from gesso.eval.task import Item
from tests.likelihood import Likelihood

FEW = {"steps": 2, "max_new_tokens": 16}


@pytest.fixture(scope="module")
def puzzles() -> list[Item]:
    return list(Sudoku().items("test", 6, seed=3))


def test_solution_is_checked_by_clues_and_rules_alone(puzzles):
    puzzle, solution = puzzles[0].meta["puzzle"], puzzles[0].expected.replace(" ", "")
    exchanged = solution[9:18] + solution[:9] + solution[18:]
    assert solves(solution, puzzle)
    assert not solves(exchanged, puzzle) and is_valid(exchanged)
    assert not solves(solution[:-1], puzzle) and not solves(puzzle, puzzle)


class Lucky(Sudoku):
    """Accept answers by their length, because random weights solve no task."""

    def stands(self, item, output):
        assert not item.expected, "the solution must not be used"
        return len(output) % 3 == 0

    def score(self, item, output):
        return {name: float(len(output) % 3 == 0) for name in self.scores}


def test_attempts_repeat_until_an_answer_is_accepted_and_all_steps_count(tiny, puzzles):
    items = [replace(item, expected="") for item in puzzles[:6]]
    once = evaluate(tiny, Lucky(), items, seed=3, **FEW)
    found = evaluate(tiny, Lucky(), items, seed=3, attempts=5, batch=4, **FEW)
    assert {o.attempts for o in found.outcomes} > {1}, "some need more than one"
    for before, outcome in zip(once.outcomes, found.outcomes, strict=True):
        assert outcome.first_scores == before.scores
        item = next(item for item in items if item.name == outcome.name)
        forms = [item, *(Sudoku().again(item, outcome.seed, n)[0] for n in range(1, outcome.attempts))]
        results = [tiny.generate(form.prompt, seed=outcome.seed, **FEW) for form in forms]
        assert outcome.output == results[-1].text
        assert outcome.denoising_steps == sum(result.usage.denoising_steps for result in results)
        assert all(len(result.text) % 3 for result in results[:-1])
        assert outcome.scores["exact"] or outcome.attempts == 5
    assert found.first_scores == once.scores
    assert found.scores["exact"].mean > found.first_scores["exact"].mean
    lines = [line.strip() for line in found.summary().splitlines()]
    assert any(line.startswith("exact, 1st try") for line in lines)
    assert found.to_dict()["settings"]["attempts"] == 5
    json.dumps(found.to_dict(), allow_nan=False)


def test_transformed_puzzle_has_the_transformed_solution(puzzles):
    for attempt, item in enumerate(puzzles, start=1):
        puzzle = item.meta["puzzle"]
        form, read = Sudoku().again(item, 7, attempt)
        assert form.prompt != item.prompt
        _, solution = parse_puzzle(form.prompt)
        assert Sudoku().stands(item, read(" ".join(solution))) and solves(read(solution), puzzle)
        assert not Sudoku().stands(item, solution)
        assert read("no grid") == "nogrid"
        assert Sudoku().again(item, 7, attempt)[0] == form != Sudoku().again(item, 8, attempt)[0]


def test_invalid_tries_are_rejected(tiny, puzzles):
    talk = Item(name="talk", prompt=({"role": "user", "content": "hi"},), expected="")
    for kind, items, tries, reason in (
        (Sudoku(), puzzles[:1], {"attempts": 0}, "attempts must be at least 1"),
        (Sudoku(), puzzles[:1], {"candidates": 0}, "candidates must be at least 1"),
        (PythonInfill(), puzzles[:1], {"attempts": 2}, "python_infill cannot"),
        (task("structured"), [talk], {"candidates": 2}, "conversations"),
    ):
        with pytest.raises(InputError, match=reason):
            evaluate(tiny, kind, items, **tries, **FEW)


def test_likeliest_candidate_is_the_answer(tiny, puzzles):
    item = puzzles[0]
    (outcome,) = evaluate(tiny, Sudoku(), [item], candidates=4, **FEW).outcomes
    results = [tiny.generate(item.prompt, seed=outcome.seed + i, **FEW) for i in range(4)]
    ids, end = tiny.tokenizer.encode(item.prompt), tiny.defaults.eos_token_ids[0]
    scores = [
        Likelihood(tiny.model, ids).of([*tiny.tokenizer.encode(result.text, bos=False), end]) for result in results
    ]
    assert outcome.output == results[scores.index(max(scores))].text
    assert outcome.denoising_steps == sum(result.usage.denoising_steps for result in results)


def test_holes_of_a_task_can_be_filled_by_the_pinned_method(marked):
    asked = PythonInfill(context=40)
    items = list(asked.items("test", 2, seed=0))
    brief = {"steps": 1, "canvas_length": 64, "max_new_tokens": 4}
    found = evaluate(marked, asked, items, pinned=True, **brief)
    for i, item in enumerate(items):
        before, after = asked.hole(item)
        assert fill_prompt(before, after) == item.prompt
        alone = marked.infill(before, after, method="pinned", seed=found.outcomes[i].seed, stop="\n", **brief)
        assert found.outcomes[i].output == alone.text
    with pytest.raises(InputError, match="holes in a text"):
        evaluate(marked, Sudoku(), list(Sudoku().items("test", 1, seed=0)), pinned=True)

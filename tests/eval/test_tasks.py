"""Tasks: puzzles with one solution, lines cut out of real files, scores that flattery does not move, intervals."""

import ast
import itertools
import json
import random
import time
from xml.etree import ElementTree

import pytest

from gesso import InputError
from gesso.eval import TASKS, PythonInfill, Sudoku, task
from gesso.eval.estimate import estimate, estimate_score, wilson
from gesso.eval.evaluate import evaluate
from gesso.eval.plot import Point, Series, series, svg
from gesso.eval.python_infill import MIDDLE, PREFIX, SUFFIX, edit_similarity, maskable
from gesso.eval.sudoku import grid as game
from gesso.eval.sudoku.puzzles import read_puzzles
from gesso.eval.task import SPLITS, Item, split_of

FEW = {"steps": 2, "max_new_tokens": 16}

# Solved by hand in a newspaper long ago (Wikipedia's example), so not by our solver.
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def bare(text: str) -> str:
    return text.replace(" ", "")


def clue_count(grid: str) -> int:
    return sum(digit != "0" for digit in grid)


@pytest.fixture(scope="module")
def puzzles() -> dict[str, list[Item]]:
    return {split: list(Sudoku().items(split, 6, seed=3)) for split in SPLITS}


# --- Sudoku: the game -----------------------------------------------------------------------------------------------


def brute_force(grid: str) -> int:
    """The number of solutions, by trying every digit in every empty cell."""
    if "0" not in grid:  # wrong clues may clash among themselves
        return int(all(len({grid[cell] for cell in unit}) == 9 for unit in game.UNITS.values()))
    cell = grid.index("0")
    near = {grid[i] for unit in game.UNITS.values() if cell in unit for i in unit}
    return sum(brute_force(grid[:cell] + d + grid[cell + 1 :]) for d in game.DIGITS if d not in near)


def test_the_solver_counts_solutions_as_brute_force_does():
    rng = random.Random(0)
    seen = set()
    for _ in range(60):
        grid = list(SOLUTION)
        for cell in rng.sample(range(81), 45):
            grid[cell] = "0"
        if rng.random() < 0.4:  # a wrong digit, in most cases one that leaves no solution
            grid[rng.choice([i for i in range(81) if grid[i] != "0"])] = rng.choice(game.DIGITS)
        count = brute_force("".join(grid))
        found = game.solutions("".join(grid), limit=1000)
        assert len(found) == len(set(found)) == count
        assert all(game.is_valid(s) and all(a in ("0", b) for a, b in zip(grid, s, strict=True)) for s in found)
        seen.add(min(count, 2))
    assert seen == {0, 1, 2}


def test_puzzles_that_stall_naive_solvers_take_less_than_a_second():
    hard = {
        "85...24..72......9..4.........1.7..23.5...9...4...........8..7..17..........36.4.": 1,
        "..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9": 1,
        ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........": 0,
        "." * 81: 2,
    }
    start = time.process_time()
    for puzzle, count in hard.items():
        assert len(game.solutions(puzzle.replace(".", "0"))) == count
    assert time.process_time() - start < 1


@pytest.mark.parametrize("clues", [22, 25, 33, 50, 80])
def test_a_made_puzzle_has_the_clues_asked_for_and_one_solution(clues):
    item = next(Sudoku(clues=(clues, clues)).items("test", 1, seed=1))
    puzzle, solution = item.meta["puzzle"], bare(item.expected)
    assert clue_count(puzzle) == clues
    assert game.solutions(puzzle, limit=3) == [solution]
    assert game.is_valid(solution)


def test_symmetries_keep_grids_valid_puzzles_unique_and_the_kinship():
    rng = random.Random(5)
    turned = set()
    for _ in range(50):
        turn = game.Symmetry.draw(rng)
        assert game.is_valid(turn(SOLUTION))
        assert game.solutions(turn(PUZZLE)) == [turn(SOLUTION)]
        assert game.kinship(turn(SOLUTION)) == game.kinship(SOLUTION)
        turned.add(turn(SOLUTION))
    assert len(turned) == 50
    grids = [game.solved_grid(rng) for _ in range(50)]
    assert len({game.kinship(grid) for grid in grids}) > 45  # it tells strangers apart


def test_no_symmetry_of_a_test_puzzle_can_be_made_for_training(puzzles):
    rng = random.Random(6)
    for split, items in puzzles.items():
        for item in items:
            for _ in range(5):
                assert split_of(game.kinship(game.Symmetry.draw(rng)(bare(item.expected)))) == split


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PUZZLE[:-1], "81 cells, got 80"),
        (PUZZLE[:-1] + "x", "found 'x'"),
        ("55" + PUZZLE[2:], r"5 occurs more than once in row 1 \(row 1 column 1 and row 1 column 2\)"),
        ("0" * 81, "several solutions"),
        ("123456780" + "0" * 17 + "9" + "0" * 54, "no solution"),
    ],
)
def test_a_puzzle_that_is_none_is_refused_with_the_reason(text, message):
    with pytest.raises(InputError, match=message):
        game.parse_puzzle(text)


def test_a_puzzle_may_be_typed_in_several_ways():
    lines = "\n".join(PUZZLE[i : i + 9] for i in range(0, 81, 9))
    for text in (PUZZLE, PUZZLE.replace("0", "."), " ".join(PUZZLE), lines):
        assert game.parse_puzzle(text) == (PUZZLE, SOLUTION)


def test_puzzle_files_are_read_with_or_without_solutions_and_serve_for_testing_only(tmp_path):
    path = tmp_path / "puzzles.txt"
    dots = PUZZLE.replace("0", ".")
    forms = [f"0123456789abcdef01234567 {PUZZLE}  1.2", f"{dots},{SOLUTION}", f"{PUZZLE}\t{SOLUTION}", " ".join(PUZZLE)]
    path.write_text("\n".join(["puzzle,solution", "", "# a comment", *forms]))
    found = list(read_puzzles(path))
    assert [(number, puzzle) for number, puzzle, _ in found] == [(n, PUZZLE) for n in (4, 5, 6, 7)]
    assert [solution for *_, solution in found] == [None, SOLUTION, SOLUTION, None]
    source = Sudoku(data=(path,))
    items = list(source.items("test", 4, seed=0))
    assert {bare(item.expected) for item in items} == {SOLUTION}
    assert sorted(item.name for item in items) == [f"puzzles.txt:{n}" for n in (4, 5, 6, 7)]
    with pytest.raises(InputError, match="for the test split"):
        next(source.items("train", 1, seed=0))
    with pytest.raises(InputError, match="the files have 4"):
        next(source.items("test", 5, seed=0))
    for line, message in (("123", "no puzzle"), (f"{PUZZLE} {SOLUTION[::-1]}", "does not solve")):
        path.write_text(f"{PUZZLE}\n{line}")
        with pytest.raises(InputError, match=f"puzzles.txt:2: .*{message}"):
            list(Sudoku(data=(path,)).items("test", 2, seed=0))


def test_sudoku_scores_tell_right_wrong_and_garbled_apart():
    sudoku = Sudoku()
    item = Item(name="", prompt=" ".join(PUZZLE), expected=" ".join(SOLUTION), meta={"puzzle": PUZZLE})
    empty = PUZZLE.count("0")
    other = next(g for g in (game.Symmetry.draw(random.Random(i))(SOLUTION) for i in range(9)) if g != SOLUTION)
    at = PUZZLE.index("0")
    slip = SOLUTION[:at] + ("1" if SOLUTION[at] != "1" else "2") + SOLUTION[at + 1 :]
    clue_changed = ("1" if SOLUTION[0] != "1" else "2") + SOLUTION[1:]
    assert sudoku.score(item, item.expected) == {"exact": 1, "cells": 1, "valid": 1}
    assert sudoku.score(item, SOLUTION + "\n") == {"exact": 1, "cells": 1, "valid": 1}
    assert sudoku.score(item, " ".join(slip)) == {"exact": 0, "cells": (empty - 1) / empty, "valid": 0}
    assert sudoku.score(item, " ".join(clue_changed)) == {"exact": 0, "cells": 1, "valid": 0}
    wrong = sudoku.score(item, " ".join(other))
    assert (wrong["exact"], wrong["valid"]) == (0, 1)
    assert wrong["cells"] < 0.5
    assert sudoku.score(item, item.prompt) == {"exact": 0, "cells": 0, "valid": 0}
    assert sudoku.score(item, item.expected + " 1")["exact"] == 0
    assert sudoku.score(item, " ".join(SOLUTION[:40]))["cells"] < 0.6
    for garbled in ("", "no idea", "\ufffd" * 81, "9" * 81, "x" * 500):
        scores = sudoku.score(item, garbled)
        assert (scores["exact"], scores["valid"]) == (0, 0)
        assert 0 <= scores["cells"] < 0.3


# --- Python infill --------------------------------------------------------------------------------------------------


def test_an_infill_item_masks_one_line_of_code_and_the_pieces_make_up_the_file():
    items = list(PythonInfill(context=400).items("test", 12, seed=0))
    assert len({item.name for item in items}) == 12
    for item in items:
        before, after = item.meta["before"], item.meta["after"]
        source = before + item.expected + after
        ast.parse(source)
        number = int(item.name.rpartition(":")[2])
        assert source.split("\n")[number - 1] == item.expected
        line = item.expected.strip()
        assert len(line) >= 3
        assert "\n" not in line
        assert not line.startswith("#")
        shown = item.prompt.removeprefix(PREFIX).removesuffix(MIDDLE)
        prefix, suffix = shown.split(SUFFIX)
        assert item.prompt == f"{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}"
        assert before.endswith(prefix)
        assert after.startswith(suffix)
        assert max(len(prefix), len(suffix)) <= 400
        # whole lines: what is left out ends, and begins again, at a line break
        assert before.removesuffix(prefix)[-1:] in ("", "\n")
        assert after.removeprefix(suffix)[:1] in ("", "\n")


def test_context_is_all_there_is_if_it_fits_and_whole_lines_if_not():
    source = "a = 1\nbb = 2\nccc = 3\ndd = 4\ne = 5\n"
    shown = [PythonInfill(context=n).mask("f.py", source, 2).prompt for n in (100, 7, 8, 1)]
    assert shown[0] == f"{PREFIX}a = 1\nbb = 2\n{SUFFIX}\ndd = 4\ne = 5\n{MIDDLE}"
    assert shown[1] == shown[2] == f"{PREFIX}bb = 2\n{SUFFIX}\ndd = 4{MIDDLE}"
    assert shown[3] == f"{PREFIX}{SUFFIX}{MIDDLE}"


def test_comments_docstrings_and_blank_lines_are_not_masked():
    words = '    """Doc.\n\n    More words.\n    """\n'
    source = f'"""Module."""\n\n# comment\nx = 1\ndef f():\n{words}    y = """a\nb c\n"""\n    return x\n'
    assert [source.split("\n")[i].strip() for i in maskable(source)] == ["x = 1", "def f():", "return x"]


def test_files_are_split_by_name_copies_count_once_and_what_is_not_code_is_left_out(tmp_path):
    for n in range(40):
        (tmp_path / f"m{n}.py").write_text(f"value = {n}\nother = value + {n}\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xff\xfe'\n")
    (tmp_path / "marks.py").write_text(f"x = '{PREFIX}'\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "check.py").write_text("assert True\n")
    for name in ("copy1.py", "copy2.py", "copy3.py"):
        (tmp_path / name).write_text("def same():\n    return 'same'\n")
    found = {split: {} for split in SPLITS}
    for split in SPLITS:
        with pytest.raises(InputError, match="were requested") as error:
            for item in PythonInfill(data=(tmp_path,)).items(split, 1000, seed=0):
                found[split].setdefault(item.name.split(":")[0], []).append(item)
        assert f"has {sum(map(len, found[split].values()))} lines" in str(error.value)
    names = [name for split in SPLITS for name in found[split]]
    assert len(names) == len(set(names))
    assert {name for name in names if name.startswith("m")} == {f"m{n}.py" for n in range(40)}
    assert not {"broken.py", "latin.py", "marks.py", "check.py", "tests/check.py"} & set(names)
    assert all(sum(name.startswith("copy") for name in found[split]) <= 1 for split in SPLITS)
    one = next(PythonInfill(data=(tmp_path / "m1.py",)).items(split_of("m1.py"), 1, seed=0))
    assert one.name.startswith("m1.py:")
    with pytest.raises(InputError, match="no such file"):
        PythonInfill(data=(tmp_path / "none",)).items("test", 1, seed=0)


def test_infill_scores_tell_the_line_from_one_that_parses_and_one_that_does_not():
    infill = PythonInfill()
    item = infill.mask("f.py", "def f(x):\n    return x + 1\n\nprint(f(2))\n", 1)
    assert infill.score(item, item.expected) == {"exact": 1, "parses": 1, "edit_similarity": 1}
    near = infill.score(item, "    return x + 2")
    assert (near["exact"], near["parses"], near["edit_similarity"]) == (0, 1, 1 - 1 / 12)
    assert infill.score(item, "return x + 1")["exact"] == 1  # the words are right, the indentation breaks the file
    assert infill.score(item, "return x + 1")["parses"] == 0
    assert infill.score(item, "    return x +")["parses"] == 0
    item = infill.mask("f.py", "x = 1\nprint(x)\n", 1)  # a file that parses without the line too
    for nothing in ("", "   ", "\x00", "\ufffd"):
        assert infill.score(item, nothing)["parses"] == 0
        assert infill.score(item, nothing)["exact"] == 0


def test_edit_similarity_is_one_less_the_share_of_edits():
    assert edit_similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert edit_similarity("", "") == edit_similarity("abc", "abc") == 1
    assert edit_similarity("abc", "") == edit_similarity("", "abc") == edit_similarity("abc", "xyz") == 0


# --- every task -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_items_are_a_function_of_split_and_seed_and_a_larger_count_only_adds(name):
    subject = task(name)
    first, again, more = (list(subject.items("test", count, seed=7)) for count in (3, 3, 5))
    assert first == again == more[:3]
    assert len({item.name for item in more}) == 5
    assert list(subject.items("test", 3, seed=8)) != first
    assert {*(str(i.prompt) for i in first)}.isdisjoint(str(i.prompt) for i in subject.items("validation", 3, seed=7))
    for item in first:
        assert subject.score(item, item.expected) == dict.fromkeys(subject.scores, 1.0)


def test_what_cannot_be_asked_of_a_task_is_refused_with_what_can():
    with pytest.raises(InputError, match="unknown task 'chess'; expected sudoku, python_infill"):
        task("chess")
    with pytest.raises(InputError, match="task sudoku: .*colour"):
        task("sudoku", colour="red")
    with pytest.raises(InputError, match="expected train, validation, test"):
        task("sudoku").items("dev", 1, seed=0)
    with pytest.raises(InputError, match="at least 1"):
        task("python_infill").items("test", 0, seed=0)
    with pytest.raises(InputError, match="read them from a file"):
        task("sudoku", clues=(17, 20))


def test_splits_hold_the_shares_they_promise():
    shares = [split_of(f"name {i}") for i in range(5000)]
    assert [round(shares.count(split) / 5000, 1) for split in SPLITS] == [0.8, 0.1, 0.1]


# --- evaluation -----------------------------------------------------------------------------------------------------


def test_wilson_intervals_are_those_of_the_books():
    """Newcombe 1998, table I, method 3 (score without continuity correction)."""
    for successes, count, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
                                        (1, 29, 0.0061, 0.1718), (20, 20, 0.8389, 1.0)):  # fmt: skip
        assert wilson(successes, count) == pytest.approx((low, high), abs=5e-5)


def test_estimates_are_means_with_intervals_that_fit_the_kind_of_value():
    found = estimate_score([1.0, 0.0, 1.0, 1.0])
    assert (found.mean, found.low, found.high) == (0.75, *wilson(3, 4))
    steps = estimate([2.0, 4.0, 6.0])
    assert (steps.mean, steps.high - steps.mean) == (4, pytest.approx(1.96 * 2 / 3**0.5, rel=1e-4))
    assert estimate([1.0, 1.0]) == estimate([1.0] * 9)  # one step each is no share of successes: no doubt is left
    assert estimate_score([0.9, 1.0, 1.0]).high == 1
    assert (estimate([3.0]).low, estimate([]).mean) == (None, 0)


def without_times(document: dict) -> dict:
    items = [{k: v for k, v in item.items() if k != "seconds"} for item in document["items"]]
    return {**document, "seconds": None, "items": items}


def test_an_evaluation_is_the_same_whatever_the_batch_and_ready_for_json(tiny, puzzles):
    items, heard = puzzles["test"][:5], []

    def run(batch):
        def hear(done, total):
            heard.append((done, total))

        return evaluate(tiny, Sudoku(), items, seed=2, batch=batch, progress=hear, data={"split": "test"}, **FEW)

    one, four = run(1), run(4)
    assert heard == [(n, 5) for n in range(1, 6)] * 2
    documents = [json.loads(json.dumps(found.to_dict(), allow_nan=False)) for found in (one, four)]
    assert without_times(documents[0]) == without_times(documents[1])
    assert without_times(documents[0]) != without_times(evaluate(tiny, Sudoku(), items, seed=3, **FEW).to_dict())
    found = documents[0]
    assert (found["task"], found["count"], found["seed"], found["failures"]) == ("sudoku", 5, 2, [])
    assert found["settings"]["steps"] == 2
    assert found["settings"]["max_new_tokens"] == 16
    assert found["data"] == {"split": "test"}
    assert found["scores"]["exact"] == {"mean": 0, "low": 0, "high": pytest.approx(wilson(0, 5)[1])}  # it knows nothing
    assert 1 <= found["denoising_steps"]["mean"] <= 4  # two steps, and two more where a canvas was drawn again
    assert 0 < found["tokens_per_step"]["mean"] <= 16
    assert len({item["seed"] for item in found["items"]}) == 5
    alone = tiny.generate(items[1].prompt, seed=found["items"][1]["seed"], **FEW)
    assert alone.text == found["items"][1]["output"]


def test_an_item_that_cannot_run_scores_zero_and_is_named_and_the_others_run(tiny, puzzles):
    good = puzzles["test"][0]
    long = Item(name="too long", prompt="1 " * 9000, expected=good.expected, meta=good.meta)
    talk = Item(name="talk", prompt=({"role": "user", "content": good.prompt},), expected=good.expected, meta=good.meta)

    class Moody:
        def __call__(self, *args, **kwargs):
            raise RuntimeError("not today")

    found = evaluate(tiny, Sudoku(), [good, long, talk], **FEW)
    assert [outcome.name for outcome in found.failures] == ["too long"]
    assert "context overflow" in found.to_dict()["failures"][0]["error"]
    assert found.outcomes[1].scores == {"exact": 0, "cells": 0, "valid": 0}
    lines = found.summary().splitlines()
    assert lines[0] == "sudoku, 3 items, at most 2 steps"
    assert lines[1].split() == ["exact", "0.0", "%", "(0.0", "to", "56.1)"]
    assert [line.split()[0] for line in lines[1:]] == ["exact", "cells", "valid", "denoising", "tokens", "failed:"]
    assert found.denoising_steps.mean >= 2  # of those that ran
    broken = evaluate(tiny, Sudoku(), [good, good], stopping=Moody(), **FEW)
    assert [outcome.error for outcome in broken.outcomes] == ["not today"] * 2
    assert "Moody" in broken.to_dict()["settings"]["stopping"]
    assert not tiny.engine.busy


def test_settings_wrong_for_every_item_and_engines_in_use_are_refused_at_once(tiny, puzzles):
    items = puzzles["test"][:1]
    for options, message in (({"colour": 1}, "colour"), ({"steps": 0}, "steps"), ({"preset": "best"}, "preset")):
        with pytest.raises(InputError, match=message):
            evaluate(tiny, Sudoku(), items, **options)
    with pytest.raises(InputError, match="no items"):
        evaluate(tiny, Sudoku(), [])
    with pytest.raises(InputError, match="batch"):
        evaluate(tiny, Sudoku(), items, batch=0)
    stream = tiny.stream("abc", **FEW)
    next(stream)
    with pytest.raises(InputError, match="open requests"):
        evaluate(tiny, Sudoku(), items, **FEW)
    stream.close()
    assert len(evaluate(tiny, Sudoku(), items, **FEW).outcomes) == 1  # a stream left early is not in the way


def test_an_evaluation_broken_off_leaves_the_engine_usable(tiny, puzzles):
    slow = Item(name="slow", prompt="1 " * 3000, expected="", meta={})  # still being read when the first is done

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny, Sudoku(), [puzzles["test"][0], slow], progress=stop, **FEW)
    tiny.engine.step()
    assert not tiny.engine.busy  # what was under way is let go, not worked off
    again = evaluate(tiny, Sudoku(), puzzles["test"][:2], **FEW)
    assert not again.failures


# --- the plot -------------------------------------------------------------------------------------------------------


def test_a_plot_shows_every_step_limit(tiny, puzzles):
    found = [evaluate(tiny, Sudoku(), puzzles["test"][:2], steps=limit, max_new_tokens=16) for limit in (1, 2)]
    assert [evaluation.settings["steps"] for evaluation in found] == [1, 2]
    assert found[0].fingerprint == found[1].fingerprint
    line = series("tiny", found, "cells")
    assert [point.x for point in line.points] == [1, 2]
    assert [point.y for point in line.points] == [evaluation.scores["cells"].mean for evaluation in found]
    assert "steps taken" in svg([line], title="t", y_label="cells")


def test_a_plot_of_losses_has_an_axis_of_its_own():
    text = svg([Series("loss", [Point(1, 9), Point(2, 4), Point(3, 1)])], title="t", y_label="loss", top=4)
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    assert {"0", "0.8", "4"} <= {node.text for node in root.iter(f"{tag}text")}
    assert "%" not in text and "1 at 3" in root.find(f"{tag}desc").text
    marks = [node for node in root.iter(f"{tag}path") if node.get("class") == "point" and len(node)]
    beyond, at_top, low = (float(node.get("transform")[10:-1].split()[1]) for node in marks)
    assert beyond == at_top < low  # what is beyond the axis is drawn at its end


def test_the_plot_is_well_formed_and_holds_every_point_name_and_interval():
    curves = [
        Series(name, [Point(x, y, max(y - 0.1, 0), y + 0.1) for x, y in zip((1, 2, 4, 48), ys, strict=True)])
        for name, ys in (("a < b & c", (0, 0.25, 0.5, 1)), ("second", (0.125, 0.5, 0.75, 0.875)))
    ]
    text = svg([*curves, Series("bare", [Point(4, 0.3)])], title='Sudoku & "more"', y_label="exact")
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    words = [node.text for node in root.iter(f"{tag}text")]
    assert root.find(f"{tag}title").text == words[0] == 'Sudoku & "more"'
    assert "25.0 % at 2" in root.find(f"{tag}desc").text
    assert {"a < b & c", "second", "bare", "0%", "100%", "1", "2", "4", "48", "exact"} <= set(words)
    marks = [node for node in root.iter(f"{tag}path") if node.get("class") == "point" and len(node)]
    titles = [node[0].text for node in marks]
    for curve, x in itertools.product(curves, range(4)):
        point = curve.points[x]
        assert any(t.startswith(f"{curve.name}, {point.x:g}: {100 * point.y:.1f} % (") for t in titles)
    assert len(marks) == 9
    assert sum(node.get("class") == "bar" for node in root.iter()) == 8
    places = [tuple(map(float, node.get("transform")[10:-1].split())) for node in marks]
    assert places[0][1] > places[1][1] > places[2][1] > places[3][1]  # better is higher
    assert places[0][0] < places[1][0] < places[2][0] < places[3][0]
    assert all(0 < x < 640 and 0 < y < 420 for x, y in places)
    assert "prefers-color-scheme:dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched

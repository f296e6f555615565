"""The example of the guide "Bring your own domain": split, items, scores, baselines, and its commands on tiny data."""

import json
import random
import re
import zipfile
from pathlib import Path

import pytest

import gesso
from examples.words import baselines, domain, fetch, prepare
from examples.words.domain import BLANK, LONGEST, hide, prompt, sequences
from examples.words.task import Words, every_sequence
from gesso import InputError
from gesso.eval.task import SPLITS, split_of
from gesso.train import recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples/words/words.toml"
WORDS = [
    f"{''.join(random.Random(stem).choices('abcdefgh', k=4))}{end}" for stem in range(60) for end in ("abc", "gage")
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of a few random words, in the place of the guide."""
    monkeypatch.chdir(tmp_path)
    domain.FILE.parent.mkdir(parents=True)
    domain.FILE.write_text("\n".join([*WORDS, "", "tiny", "Capital", "isn't", *WORDS[:3]]) + "\n")
    every_sequence.cache_clear()
    return tmp_path


def test_words_with_the_same_beginning_are_in_one_split() -> None:
    found = {split: sequences(split) for split in SPLITS}
    assert sorted(word for words in found.values() for word in words) == sorted(set(WORDS))
    for split, words in found.items():
        assert words
        assert {split_of(word[:4]) for word in words} == {split}


def test_missing_list_is_an_error_that_names_the_command() -> None:
    domain.FILE.unlink()
    with pytest.raises(InputError, match=r"words\.txt.*examples\.words\.fetch"):
        sequences("test")


def test_hidden_letters_are_the_asked_share() -> None:
    draw = random.Random(0)
    patterns = [hide("crossword", 0.34, draw) for _ in range(50)]
    assert {pattern.count(BLANK) for pattern in patterns} == {3}
    assert len(set(patterns)) > 20
    assert all(re.fullmatch(pattern.replace(BLANK, "."), "crossword") for pattern in patterns)
    assert hide("crossword", 0, draw).count(BLANK) == 1


def test_items_are_words_that_training_does_not_see() -> None:
    task, train = Words(), sequences("train")
    count = len(sequences("test"))
    items = list(task.items("test", count, 0))
    assert {item.expected for item in items} == set(sequences("test"))
    assert [item.name for item in task.items("test", count, 0)] == [item.name for item in items]
    for item in items:
        assert item.expected not in train
        assert item.prompt == prompt(item.meta["pattern"])
        assert re.fullmatch(item.constraint["regex"], item.expected)
        assert task.score(item, item.expected + "\n") == dict.fromkeys(task.scores, 1.0)
    with pytest.raises(InputError, match=f"{count} sequences, but {count + 1}"):
        list(task.items("test", count + 1, 0))


def test_valid_is_any_word_that_keeps_the_shown_letters() -> None:
    domain.FILE.write_text("walking\ntalking\nbalking\nwalkers\n")
    every_sequence.cache_clear()
    task = Words()
    asked = {"name": "", "prompt": "", "expected": "walking", "meta": {"pattern": "_alk_ng"}}
    item = gesso.eval.Item(**asked, constraint={"regex": "[a-z]alk[a-z]ng"})
    assert task.score(item, "talking") == {"exact": 0, "valid": 1, "recovery": 0.5}
    assert task.score(item, "walkers") == {"exact": 0, "valid": 0, "recovery": 0.5}
    assert task.score(item, "xalking") == {"exact": 0, "valid": 0, "recovery": 0.5}
    assert task.score(item, "") == {"exact": 0, "valid": 0, "recovery": 0}


def test_chain_uses_the_letters_on_both_sides() -> None:
    fill = baselines.chain(["abcdefg", "abxyefg", "hbxzefg"], 3)
    assert fill("ab__efg", "") in ("abcdefg", "abxyefg")
    assert fill("ab_yefg", "") == "abxyefg"
    assert fill("abc__fg", "") == "abcdefg"
    assert fill("_bxz___", "") == "hbxzefg"


def test_look_up_returns_the_first_word_that_fits() -> None:
    fill = baselines.look_up(["walking", "talking", "walker"])
    assert fill("", "[a-z]alking") == "walking"
    assert fill("", "t[a-z]lking") == "talking"
    assert fill("", "[a-z]{5}") == ""


def test_words_come_from_the_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as file:
        file.writestr(fetch.MEMBER, "\ufeffthe 23\nof 13\n")
    assert fetch.words_of(tmp_path / "x.whl") == ["the", "of"]


def test_commands_of_the_guide_run_on_a_short_list(folder: Path, main, own_cache, capsys) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    prepare.main()
    rows = [json.loads(line) for line in Path("data/words/train.jsonl").read_text().splitlines()]
    assert {row["completion"] for row in rows} == set(sequences("train"))
    short = RECIPE.read_text().replace("batch_size = 32", "batch_size = 2")
    Path("short.toml").write_text(re.sub(r"\nsteps = \d+", "\nsteps = 1", short))
    done = main("train", "short.toml")
    assert done.code == 0, done.err
    done = main(
        "eval", "examples.words.task:Words", "-m", "runs/words/model", "--count", "2", "--constrained", "--json"
    )
    assert done.code == 0, done.err
    assert set(json.loads(done.out)[0]["scores"]) == set(Words.scores)
    capsys.readouterr()
    baselines.main(["--count", "2"])
    assert re.search(r"whole list +50.0|100.0", capsys.readouterr().out)
    tokenizer = gesso.load("runs/words/model").tokenizer
    assert len(tokenizer.encode("c_o_sw_rd=")) == 1 + len("c_o_sw_rd=")  # bos and one token per character


def test_canvas_and_rows_hold_the_longest_word() -> None:
    settings = recipe.load(RECIPE)
    assert settings.objective.canvas_lengths == (Words.options["max_new_tokens"],)
    assert Words.options["max_new_tokens"] > LONGEST
    assert 1 + len(prompt("a" * LONGEST)) + LONGEST + 1 <= settings.data.max_length


def test_guide_shows_the_domain_as_it_is() -> None:
    page = (ROOT / "docs/guides/bring-your-own-domain.md").read_text(encoding="utf-8")
    code = (ROOT / "examples/words/domain.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in page

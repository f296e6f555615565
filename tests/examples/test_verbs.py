"""The example of the guide "Bring your own domain": split, items, scores, baselines, and its commands on tiny data."""

import gzip
import json
import random
import re
import zipfile
from pathlib import Path

import pytest

import gesso
from examples.verbs import baselines, domain, fetch, prepare
from examples.verbs.domain import BLANK, LENGTH, WIDTH, columns, hide, prompt, sequences
from examples.verbs.task import Verbs
from gesso import InputError
from gesso.eval.task import SPLITS, split_of
from gesso.train import recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples/verbs/verbs.toml"
STEMS = ["".join(random.Random(stem).choices("abcdefgh", k=5)) for stem in range(60)]
VERBS = [f"{stem} {stem}ed {stem}ing" for stem in STEMS]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of a few random verbs, in the place of the guide."""
    monkeypatch.chdir(tmp_path)
    domain.FILE.parent.mkdir(parents=True)
    unusable = ("", "go went", "Go went going", "a b c d", f"{'a' * WIDTH} b c")
    domain.FILE.write_text("\n".join([*VERBS, *unusable, *VERBS[:3]]) + "\n")
    return tmp_path


def test_verbs_with_the_same_beginning_are_in_one_split() -> None:
    found = {split: sequences(split) for split in SPLITS}
    assert sorted(verb for verbs in found.values() for verb in verbs) == sorted(map(columns, set(VERBS)))
    for split, verbs in found.items():
        assert verbs
        assert {split_of(verb[:4]) for verb in verbs} == {split}


def test_missing_list_is_an_error_that_names_the_command() -> None:
    domain.FILE.unlink()
    with pytest.raises(InputError, match=r"verbs\.txt.*examples\.verbs\.fetch"):
        sequences("test")


def test_hidden_letters_are_the_asked_share_and_spaces_stay() -> None:
    draw, verb = random.Random(0), columns("go went going")
    patterns = [hide(verb, 0.5, draw) for _ in range(50)]
    assert {pattern.count(BLANK) for pattern in patterns} == {6}  # of eleven, rounded to even
    assert len(set(patterns)) > 20
    assert all(re.fullmatch(pattern.replace(BLANK, "[a-z]"), verb) for pattern in patterns)
    assert hide(verb, 0, draw).count(BLANK) == 1


def test_items_are_verbs_that_training_does_not_see() -> None:
    task, train, test = Verbs(), sequences("train"), sequences("test")
    items = list(task.items("test", 2 * len(test), 0))
    assert {item.expected for item in items[: len(test)]} == set(test)
    assert len({item.name for item in items}) == 2 * len(test)
    assert [item.name for item in task.items("test", 2 * len(test), 0)] == [item.name for item in items]
    for item in items:
        assert item.expected not in train
        assert item.prompt == prompt(item.meta["pattern"])
        assert re.fullmatch(item.constraint["regex"], item.expected)
        assert task.score(item, item.expected + "\n") == dict.fromkeys(task.scores, 1.0)


def test_score_counts_forms_and_hidden_letters() -> None:
    pattern, right = (columns(line) for line in ("g_ w___ going", "go went going"))
    item = gesso.eval.Item(name="", prompt="", expected=right, meta={"pattern": pattern})
    task = Verbs()
    assert task.score(item, columns("go want going")) == {"exact": 0, "forms": 2 / 3, "recovery": 3 / 4}
    assert task.score(item, "") == {"exact": 0, "forms": 0, "recovery": 0}


def test_chain_uses_the_letters_on_both_sides() -> None:
    fill = baselines.chain(["abcdefg", "abxyefg", "hbxzefg"], 3)
    assert fill("ab__efg") in ("abcdefg", "abxyefg")
    assert fill("ab_yefg") == "abxyefg"
    assert fill("abc__fg") == "abcdefg"
    assert fill("_bxz___") == "hbxzefg"


def test_letters_of_the_stem_are_copied_from_other_forms() -> None:
    assert baselines.copied(columns("w__k __l___ _a___n_")) == columns("walk wal___ wal__n_")


def test_verbs_come_from_the_wheel(tmp_path: Path) -> None:
    lines = "go,noun,go/goes\ngo,verb,went,gone,going,goes\nstop,verb,stopped/stopt,,stopping,stops\nquoth,verb,quoth\n"
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as file:
        file.writestr(fetch.MEMBER, gzip.compress(lines.encode()))
    assert fetch.verbs_of(tmp_path / "x.whl") == ["go went going", "stop stopped stopping"]


def test_commands_of_the_guide_run_on_a_short_list(folder: Path, main, own_cache, capsys) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    prepare.main()
    rows = [json.loads(line) for line in Path("data/verbs/train.jsonl").read_text().splitlines()]
    assert {row["completion"] for row in rows} == set(sequences("train"))
    short = RECIPE.read_text().replace("batch_size = 32", "batch_size = 2")
    Path("short.toml").write_text(re.sub(r"\nsteps = \d+", "\nsteps = 1", short))
    done = main("train", "short.toml")
    assert done.code == 0, done.err
    done = main(
        "eval", "examples.verbs.task:Verbs", "-m", "runs/verbs/model", "--count", "2", "--constrained", "--json"
    )
    assert done.code == 0, done.err
    assert set(json.loads(done.out)[0]["scores"]) == set(Verbs.scores)
    capsys.readouterr()
    baselines.main(["--count", "2"])
    assert re.search(r"^copy +\d", capsys.readouterr().out, re.MULTILINE)
    tokenizer = gesso.load("runs/verbs/model").tokenizer
    assert len(tokenizer.encode("c_o_sw_rd  =")) == 1 + len("c_o_sw_rd  =")  # bos and one token per character


def test_canvas_and_rows_hold_the_longest_sequence() -> None:
    settings = recipe.load(RECIPE)
    assert settings.objective.canvas_lengths == (Verbs.options["max_new_tokens"],)
    assert Verbs.options["max_new_tokens"] > LENGTH
    assert 1 + len(prompt("a" * LENGTH)) + LENGTH + 1 <= settings.data.max_length


def test_guide_shows_the_domain_as_it_is() -> None:
    page = (ROOT / "docs/guides/bring-your-own-domain.md").read_text(encoding="utf-8")
    code = (ROOT / "examples/verbs/domain.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in page

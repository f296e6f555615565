"""Repair of documents: patches, damages, excerpts, scores and baselines."""

import hashlib
import json
import lzma
import random
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest

from examples.documents import baselines, corpus, data, patch, picture, rules
from examples.documents.damage import damage, places
from examples.documents.repair import main as repair_file
from examples.documents.repair import repair
from examples.documents.structure import html, is_broken, is_same
from examples.documents.task import Documents, Json, distance, score
from gesso.errors import InputError
from gesso.eval.task import split_of

MARKDOWN = """\
# Install

Use `pip` or **conda**, see [the guide](https://example.org/guide).

- first *item*
  - nested item
- second item

```python
print("**not bold**")
```

| name | value |
|------|-------|
| a    | `1`   |

> A quote, and the end."""
JSON = json.dumps({"name": "a, b: {c}", "list": [1, {"deep": None}], "more": {"x": "y"}}, indent=2)
TEXTS = {"markdown": MARKDOWN, "json": JSON}
RULES = {
    "markdown": {"blockquote", "code", "emphasis", "fence", "heading", "link", "list", "table"},
    "json": {"bracket", "colon", "comma", "quote"},
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_patch_undoes_every_damage(kind):
    seen = set()
    for seed in range(150):
        damaged, made = damage(kind, TEXTS[kind], 1 + seed % 3, random.Random(seed))
        seen |= {one.rule for one in made}
        assert len(made) == 1 + seed % 3
        assert is_broken(kind, damaged, TEXTS[kind])
        assert patch.apply(patch.make(damaged, TEXTS[kind]), damaged) == TEXTS[kind]
    assert seen == RULES[kind]


def test_code_and_strings_are_never_damaged():
    code = MARKDOWN.index("**not bold**")
    assert all(not code <= one.start < code + 12 for one in places("markdown", MARKDOWN))
    string = JSON.index("a, b")
    assert all(not string <= one.start < string + 9 for one in places("json", JSON))


def test_no_patch_changes_letters_or_digits():
    rng = random.Random(0)
    lines = MARKDOWN.split("\n")
    for _ in range(300):
        number, line = rng.randint(0, len(lines) + 1), rng.choice((*lines, "x", "```", "", "# Instal"))
        change = rng.choice((f"{number}\t{line}", f"{number}+\t{line}", f"{number}-", f"{number} {line}"))
        assert patch.letters(patch.apply(change, MARKDOWN)) == patch.letters(MARKDOWN)
    assert patch.apply("1\t# install\n3-\n1+\tnew", MARKDOWN) == MARKDOWN
    assert patch.apply("1\t## Install\n1\tInstall", "# Install") == "## Install"


@pytest.mark.parametrize("kind", TEXTS)
def test_the_pattern_allows_repairs_and_nothing_that_is_ignored(kind):
    damaged, _ = damage(kind, TEXTS[kind], 3, random.Random(1))
    allowed = re.compile(patch.pattern(damaged))
    assert allowed.fullmatch(patch.make(damaged, TEXTS[kind])) and allowed.fullmatch(patch.NOTHING)
    for bad in ("1\t# Instal", "3-", "99\t", "3+\tnew", "", "1 # Install", "okay"):
        assert not allowed.fullmatch(bad)


def test_a_patch_is_the_shortest():
    assert patch.make(MARKDOWN, MARKDOWN) == patch.NOTHING
    assert patch.apply(patch.NOTHING, MARKDOWN) == MARKDOWN
    assert patch.make("a\nb\n``", "a\n```\nb!\n```") == "1+\t```\n2\tb!\n3\t```"
    assert patch.make("a\n\n\nb", "a\n\nb") == "3-"
    with pytest.raises(ValueError, match="letters or digits"):
        patch.make("a", "b")


def test_structure_ignores_visible_characters_of_markdown_and_formatting_of_json():
    assert not is_broken("markdown", "a b", "a, b") and not is_same("markdown", "a b", "a, b")
    assert is_broken("markdown", "**a*", "**a**")
    assert is_same("json", '{"a":1}', '{\n  "a": 1\n}') and not is_same("json", '{"a": 1', '{"a": 1}')


# --- excerpts and items ---------------------------------------------------------------------------------------------


def words(line):
    return len(line.split())


def test_excerpts_are_cut_between_blocks():
    text = "\n\n".join([MARKDOWN, "long " * 99, MARKDOWN.replace("Install", "Again")])
    first, second = corpus.markdown_pieces(text, words)
    assert first == MARKDOWN and second == MARKDOWN.replace("Install", "Again")
    table = "\n".join(["## Rows", "", "| a | b |", "|---|---|", *(f"| {n} | `c` |" for n in range(99))])
    (shortened,) = corpus.markdown_pieces(table, words)
    assert (
        shortened.count("\n") + 1 == corpus.MOST_LINES and shortened.startswith("| a") and "<table>" in html(shortened)
    )
    value = {"skipped": "long " * 99, **{f"key {n}": [{"a": n, "b": [n]}] for n in range(20)}}
    found = list(corpus.json_pieces(json.dumps(value), words))
    assert all(corpus.FEWEST_LINES <= len(one.split("\n")) <= corpus.MOST_LINES for one in found)
    merged = {key: member for one in found for key, member in json.loads(one).items()}
    assert merged.items() <= value.items() and len(merged) > 15


def test_packages_of_one_project_share_a_split_and_copies_are_recognized():
    assert corpus.family("mkdocs-material") == corpus.family("mkdocs_macros") == "mkdocs"
    copies = corpus.Copies()
    assert not copies.has(MARKDOWN) and not copies.has(JSON)
    assert copies.has(MARKDOWN.replace("item", "item", 1) + "\n\nOne more line of text.")


@pytest.fixture
def excerpts(tmp_path):
    rows = [
        {"kind": kind, "text": text, "source": f"{kind} {n}", "license": "MIT", "split": split}
        for kind, text in TEXTS.items()
        for split in ("train", "test")
        for n in range(2)
    ]
    data.write_rows(rows, tmp_path / "excerpts.jsonl.xz")
    return tmp_path / "excerpts.jsonl.xz"


def test_items_are_reproducible_alternate_kinds_and_are_solved_by_their_patch(excerpts):
    task = Documents(data=(excerpts,))
    items = list(task.items("test", 40, seed=1))
    assert items == list(task.items("test", 40, seed=1)) != list(task.items("test", 40, seed=2))
    assert [item.meta["kind"] for item in items[:4]] == ["markdown", "json"] * 2
    assert {item.meta["kind"] for item in Json(data=(excerpts,)).items("test", 4, seed=1)} == {"json"}
    for item in items:
        assert task.score(item, item.expected) == dict.fromkeys(task.scores, 1.0)
        assert patch.numbered(item.meta["damaged"]) in item.prompt
    intact = [item for item in items if item.expected == patch.NOTHING]
    assert 0 < len(intact) < 12 and all(item.meta["damaged"] == item.meta["original"] for item in intact)


def test_scores_tell_a_harmless_answer_from_a_harmful_one(excerpts):
    item = next(one for one in Documents(data=(excerpts,)).items("test", 200, 0) if one.name.endswith(" heading"))
    damaged, original = item.meta["damaged"], item.meta["original"]
    assert score(item, damaged) == {"repaired": 0.0, "exact": 0.0, "untouched": 1.0, "edit": 0.0}
    harmful = original.replace("> A quote", "A quote")
    assert score(item, harmful) == {"repaired": 0.0, "exact": 0.0, "untouched": 0.0, "edit": 0.0}
    half = original.replace("|------|", "|-----|")
    assert score(item, half) == {"repaired": 1.0, "exact": 0.0, "untouched": 0.0, "edit": 0.0}


@pytest.mark.parametrize(
    "edits", [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("ab", "ba", 2), ("a", "a", 0)]
)
def test_the_distance_counts_inserted_deleted_and_replaced_characters(edits):
    assert distance(*edits[:2]) == edits[2]


def test_missing_or_empty_data_is_an_error_that_names_the_command(tmp_path, excerpts):
    with pytest.raises(InputError, match="examples.documents.data"):
        Documents(data=(tmp_path / "none.jsonl.xz",)).items("test", 1, 0)
    with pytest.raises(InputError, match="no excerpts in the validation split"):
        Documents(data=(excerpts,)).items("validation", 1, 0)


def test_training_rows_are_even_and_come_from_the_train_split(excerpts):
    with lzma.open(excerpts, "rt") as rows:
        train = [row for row in map(json.loads, rows) if row["split"] == "train"]
    made = list(data.training_rows(train, 20))
    assert len(made) == 20
    assert [row["prompt"].startswith("json") for row in made].count(True) == 10
    assert made == list(data.training_rows(train, 20))


def wheel(directory, name, license="MIT"):
    """Write a wheel with a description in Markdown, a JSON file and a licence, and return its line of packages.toml."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    about = f"Name: {name}\nLicense-Expression: {license}\nDescription-Content-Type: text/markdown\n\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", about + MARKDOWN.replace("item", name))
        archive.writestr(f"{name}/table.json", json.dumps({name: [{"a": name * 4, "b": name * 5, "c": None}] * 2}))
        archive.writestr(f"{name}/LICENSE.md", MARKDOWN)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return f'{{name = "{name}", version = "1.0", license = "MIT", sha256 = "{sha256}"}}'


def test_data_is_made_from_wheels_whose_licences_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "ProcessPoolExecutor", ThreadPoolExecutor)  # other processes would not see the next line
    monkeypatch.setattr(data, "token_count", lambda: words)  # the model takes seconds to load
    held_out = next(name for name in ("s" * n + "brush" for n in range(99)) if split_of(name) == "test")
    listed = [wheel(tmp_path, "paint"), wheel(tmp_path, held_out)]
    packages = tmp_path / "packages.toml"
    packages.write_text(f"package = [{', '.join(listed)}]")
    data.make(tmp_path, tmp_path, packages=packages, rows=20, say=lambda _: None)
    with lzma.open(tmp_path / "excerpts.jsonl.xz", "rt") as rows:
        found = [json.loads(row) for row in rows]
    assert {(row["source"], row["split"]) for row in found} == {
        ("paint==1.0/README.md:0", "train"),  # the other package has a copy
        ("paint==1.0/paint/table.json:0", "train"),
        (f"{held_out}==1.0/{held_out}/table.json:0", "test"),
    }
    with lzma.open(tmp_path / "train.jsonl.xz", "rt") as rows:
        assert len(list(rows)) == 20
    (tmp_path / "train.jsonl.xz").unlink()
    packages.write_text(f"package = [{wheel(tmp_path, 'glue', 'GPL-3.0-only')}]")
    data.make(tmp_path, tmp_path, packages=packages, rows=20, say=lambda _: None)  # keeps the excerpts
    assert (tmp_path / "train.jsonl.xz").exists()
    (tmp_path / "excerpts.jsonl.xz").unlink()
    with pytest.raises(InputError, match="glue: listed as MIT, but its metadata has GPL"):
        data.make(tmp_path, tmp_path, packages=packages, rows=20, say=lambda _: None)


# --- a model --------------------------------------------------------------------------------------------------------


def test_no_model_can_change_a_word_and_the_picture_has_its_drafts(tiny):
    found = repair(tiny, "markdown", picture.DAMAGED, seed=1, steps=3, stopping="fixed")
    assert len(found.drafts) == 3 and patch.letters(found.text) == patch.letters(picture.DAMAGED)
    drawn = picture.svg(picture.DAMAGED, found)
    assert drawn.count("patch, step") == 3 and len(drawn) < 60_000
    ElementTree.fromstring(drawn)


def test_files_that_cannot_be_repaired_are_errors(tmp_path):
    for name, text, says in (("a.txt", "", r"must end in .md"), ("a.md", "\n" * 60 + "x", "at most 40 lines")):
        (tmp_path / name).write_text(text)
        with pytest.raises(SystemExit, match=says):
            repair_file([str(tmp_path / name)])


# --- baselines ------------------------------------------------------------------------------------------------------


def test_rules_keep_intact_documents_and_repair_some(excerpts, capsys):
    for kind, text in TEXTS.items():
        assert rules.repair(kind, text) == text
    assert (
        rules.repair_json('{\n  a": [\n    1\n    2,\n  ],\n  "b" 3') == '{\n  "a": [\n    1,\n    2\n  ],\n  "b": 3\n}'
    )
    assert rules.repair_markdown("#Title\n\n``sh\nls") == "# Title\n\n```sh\nls\n```"
    assert rules.repair_markdown("a `b and **c*") == "a `b` and **c**"
    broken = ("a](b/c), d", "[a(b/c), d", "[a]b/c), d", "[a](b/c, d")
    assert {rules.repair_markdown(line) for line in broken} == {"[a](b/c), d"}
    baselines.main(["--data", str(excerpts), "--count", "40"])
    table = capsys.readouterr().out
    assert "| nothing | 40 all" in table and "| rules | 20 json" in table

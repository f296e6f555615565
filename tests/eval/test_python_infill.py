"""The Python infill task: masked lines, splits and scores."""

import ast

import pytest

from gesso import InputError
from gesso.eval import PythonInfill
from gesso.eval.python_infill import MIDDLE, PREFIX, SUFFIX, edit_similarity, maskable
from gesso.eval.task import SPLITS, split_of


def test_an_item_masks_one_line_of_code():
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
        # the context consists of whole lines
        assert before.removesuffix(prefix)[-1:] in ("", "\n")
        assert after.removeprefix(suffix)[:1] in ("", "\n")


def test_context_is_cut_to_whole_lines():
    source = "a = 1\nbb = 2\nccc = 3\ndd = 4\ne = 5\n"
    shown = [PythonInfill(context=n).mask("f.py", source, 2).prompt for n in (100, 7, 8, 1)]
    assert shown[0] == f"{PREFIX}a = 1\nbb = 2\n{SUFFIX}\ndd = 4\ne = 5\n{MIDDLE}"
    assert shown[1] == shown[2] == f"{PREFIX}bb = 2\n{SUFFIX}\ndd = 4{MIDDLE}"
    assert shown[3] == f"{PREFIX}{SUFFIX}{MIDDLE}"


def test_comments_docstrings_and_blank_lines_are_not_masked():
    words = '    """Doc.\n\n    More words.\n    """\n'
    source = f'"""Module."""\n\n# comment\nx = 1\ndef f():\n{words}    y = """a\nb c\n"""\n    return x\n'
    assert [source.split("\n")[i].strip() for i in maskable(source)] == ["x = 1", "def f():", "return x"]


def test_files_are_split_by_name_without_copies_or_invalid_files(tmp_path):
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


def test_scores_distinguish_exact_parsing_and_invalid_lines():
    infill = PythonInfill()
    item = infill.mask("f.py", "def f(x):\n    return x + 1\n\nprint(f(2))\n", 1)
    assert infill.score(item, item.expected) == {"exact": 1, "parses": 1, "edit_similarity": 1}
    near = infill.score(item, "    return x + 2")
    assert (near["exact"], near["parses"], near["edit_similarity"]) == (0, 1, 1 - 1 / 12)
    assert infill.score(item, "return x + 1")["exact"] == 1  # indentation is ignored, but breaks the file
    assert infill.score(item, "return x + 1")["parses"] == 0
    assert infill.score(item, "    return x +")["parses"] == 0
    item = infill.mask("f.py", "x = 1\nprint(x)\n", 1)  # a file that also parses without the line
    for nothing in ("", "   ", "\x00", "\ufffd"):
        assert infill.score(item, nothing)["parses"] == 0
        assert infill.score(item, nothing)["exact"] == 0


def test_edit_similarity_is_one_minus_the_share_of_edits():
    assert edit_similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert edit_similarity("", "") == edit_similarity("abc", "abc") == 1
    assert edit_similarity("abc", "") == edit_similarity("", "abc") == edit_similarity("abc", "xyz") == 0

"""A class name has one meaning in the package."""

import re
from collections import Counter

from tools.reading_costs import ROOT, costs


def test_no_two_classes_of_the_package_have_one_name():
    classes = Counter(
        name
        for path in (ROOT / "gesso").rglob("*.py")
        for name in re.findall(r"^ *class (\w+)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert not {name for name, count in classes.items() if count > 1}


def test_vague_names_and_packed_lines_are_counted(tmp_path):
    (tmp_path / "a.py").write_text("class Plan: ...\n")
    (tmp_path / "b.py").write_text(
        "class Plan: ...\ndef f(x):\n    found = x\n    a, b, c = 1, 2, 3\n    return Plan(*found)\n"
    )
    counted = {(cost.kind, cost.what) for cost in costs(tmp_path)}
    assert counted == {("classes", "Plan"), ("names", "found"), ("tuples", "(a, b, c)"), ("splats", "Plan")}

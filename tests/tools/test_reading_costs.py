"""A class name has one meaning in the package."""

from tools.reading_costs import ROOT, costs

# What a request is called in the server, its worker and the engine. One road for it will leave one name each.
SHARED = {"Constraint", "Failed", "Job", "Outcome", "Work"}


def test_no_two_classes_of_the_package_have_one_name():
    assert {cost.what for cost in costs(ROOT / "gesso") if cost.kind == "classes"} == SHARED


def test_a_name_of_two_classes_is_counted(tmp_path):
    (tmp_path / "a.py").write_text("class Plan: ...\n")
    (tmp_path / "b.py").write_text("class Plan: ...\n")
    assert {cost.what for cost in costs(tmp_path) if cost.kind == "classes"} == {"Plan"}

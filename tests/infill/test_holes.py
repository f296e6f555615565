"""The script that fills a hole at every position: it resumes, and it detects changes around a hole."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gesso.eval.task import split_of

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("holes", RECIPES / "holes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_run_resumes_and_visits_every_position_once(script, tmp_path, monkeypatch, capsys):
    files = {"a.py": "x = 1\r\nprint('é日🙂')\n", "b.py": "y"}
    seen = []
    monkeypatch.setattr(script, "held_out", lambda library, count: files)
    monkeypatch.setattr(script, "small_model", lambda: None)
    monkeypatch.setattr(script, "AT_ONCE", 4)
    monkeypatch.setattr(script, "changed", lambda g, batch: seen.extend((name, at) for name, _, at in batch) or [])
    clock = iter(range(1000))
    monkeypatch.setattr(script.time, "monotonic", lambda: float(next(clock)))
    every = [(name, at) for name, text in files.items() for at in range(len(text) + 1)]
    for _ in range(9):
        assert script.main(["--files", "2", "--minutes", "0.03", "--state", str(tmp_path / "state")]) == 0
    assert sorted(seen) == every
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["done"] == said["positions"] == len(seen)
    seen.clear()
    for part in (1, 2, 3):
        assert script.main(["--files", "2", "--part", f"{part}/3"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert 0 < said["done"] == said["positions"] < len(every)
    assert sorted(seen) == every, "the parts cover everything and do not overlap"
    with pytest.raises(SystemExit, match="part 1/1"):
        script.main(["--files", "2", "--part", "2/3", "--state", str(tmp_path / "state")])


def test_shortest_held_out_files_are_used(script, tmp_path):
    for n in range(40):
        (tmp_path / f"m{n}.py").write_text("x = 1\n" * (10 * n))
    (tmp_path / "broken.py").write_text("(" * 600)
    shown = {f"m{n}.py" for n in range(40) if split_of(f"m{n}.py") == "train"}
    found = list(script.held_out(tmp_path, 3))
    assert found == [f"m{n}.py" for n in range(9, 40) if f"m{n}.py" not in shown][:3]


def test_change_around_a_hole_is_detected(script, monkeypatch):
    g = script.small_model()
    text = "def f(prin, x):\r\n    return 'é日🙂' + prin\n"
    batch = [("a.py", text, at) for at in range(0, len(text), 3)]
    assert script.changed(g, batch) == []
    run = g.run
    monkeypatch.setattr(g, "run", lambda rs: [replace(r, tokens=(*r.tokens[:-1], 300)) for r in run(rs)])
    assert any("the suffix stands otherwise" in what for what in script.changed(g, batch))

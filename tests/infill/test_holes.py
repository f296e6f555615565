"""The script that fills a hole at every position of a file."""

import json
from dataclasses import replace

import pytest

from examples.python_infill import holes as script
from gesso.eval.task import split_of


def test_runs_continue_and_cover_every_position_once(tmp_path, monkeypatch, capsys):
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
    assert sorted(seen) == every, "the parts cover everything, without overlap"
    with pytest.raises(SystemExit, match="part 1/1"):
        script.main(["--files", "2", "--part", "2/3", "--state", str(tmp_path / "state")])


def test_the_shortest_held_out_files_are_used(tmp_path):
    for n in range(40):
        (tmp_path / f"m{n}.py").write_text("x = 1\n" * (10 * n))
    (tmp_path / "broken.py").write_text("(" * 600)
    shown = {f"m{n}.py" for n in range(40) if split_of(f"m{n}.py") == "train"}
    found = list(script.held_out(tmp_path, 3))
    assert found == [f"m{n}.py" for n in range(9, 40) if f"m{n}.py" not in shown][:3]


def test_a_changed_suffix_is_found(monkeypatch):
    g = script.small_model()
    text = "def f(prin, x):\r\n    return 'é日🙂' + prin\n"
    batch = [("a.py", text, at) for at in range(0, len(text), 3)]
    assert script.changed(g, batch) == []
    run = g.run
    monkeypatch.setattr(g, "run", lambda rs: [replace(r, tokens=(*r.tokens[:-1], 300)) for r in run(rs)])
    assert any("the suffix differs" in what for what in script.changed(g, batch))

"""The script that fills a hole at every position of a file."""

import json
from dataclasses import replace

import pytest

from examples.python_infill import holes as script
from gesso.eval.task import split_of
from tests.watched import Watched


def test_batches_cover_every_position_once_and_parts_share_them():
    files = {"a.py": "x = 1\r\nprint('é日🙂')\n" * 5, "b.py": "y"}
    every = [(name, at) for name, text in files.items() for at in range(len(text) + 1)]

    def positions(part, parts):
        return [(name, at) for batch in script.batches(files, part, parts) for name, _, at in batch]

    assert sorted(positions(1, 1)) == every
    shares = [positions(part, 3) for part in (1, 2, 3)]
    assert all(0 < len(share) < len(every) for share in shares)
    assert sorted(position for share in shares for position in share) == every, "without overlap"


def test_a_run_continues_from_its_state(tmp_path, capsys):
    """The state says that all batches but the last, which is short, are done."""
    (tmp_path / next(name for name in map("m{}.py".format, range(40)) if split_of(name) != "train")).write_text(
        "x = 1\n" * 90
    )
    state = tmp_path / "state"
    asked = ["--data", str(tmp_path), "--files", "1", "--state", str(state)]
    assert script.main([*asked, "--minutes", "0"]) == 0
    noted = json.loads(state.read_text())
    assert (noted["batches"], noted["done"]) == (0, 0)
    state.write_text(json.dumps(noted | {"batches": 16, "done": 16 * script.AT_ONCE}))
    for _ in range(2):  # the second time, nothing is left
        assert script.main(asked) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (report["batches"], report["done"], report["positions"]) == (17, 541, 541)
    with pytest.raises(SystemExit, match="part 1/1"):
        script.main([*asked, "--part", "2/3"])


def test_the_shortest_held_out_files_are_used(tmp_path):
    for n in range(40):
        (tmp_path / f"m{n}.py").write_text("x = 1\n" * (10 * n))
    (tmp_path / "broken.py").write_text("(" * 600)
    shown = {f"m{n}.py" for n in range(40) if split_of(f"m{n}.py") == "train"}
    found = list(script.held_out(tmp_path, 3))
    assert found == [f"m{n}.py" for n in range(9, 40) if f"m{n}.py" not in shown][:3]


def test_a_changed_suffix_is_found():
    g = script.small_model()
    text = "def f(prin, x):\r\n    return 'é日🙂' + prin\n"
    batch = [("a.py", text, at) for at in range(0, len(text), 3)]
    assert script.changed(g, batch) == []

    def run(run, requests):
        return [replace(result, tokens=(*result.tokens[:-1], 300)) for result in run(requests)]

    assert any("the suffix differs" in what for what in script.changed(Watched(g, run=run), batch))

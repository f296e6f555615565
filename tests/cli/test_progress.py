"""The progress of long commands on stderr, where it is no terminal."""

import json

import pytest

from gesso import progress
from gesso.cli.main import main


@pytest.mark.usefixtures("environment")
def test_eval_shows_progress_beside_json(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 + 1 =", "answer": "2"}\n' * 2)
    assert main(["eval", "--data", str(rows), "--steps", "1", "--max-new-tokens", "4", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["count"] == 2
    assert err.splitlines() == ["rows.jsonl, --steps 1 1/2", "rows.jsonl, --steps 1 2/2"]

"""The progress of long commands on stderr."""

import io
import json
from contextlib import redirect_stderr

import pytest

from gesso.cli.main import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("environment")
def test_eval_shows_progress_beside_json(capsys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 + 1 =", "answer": "2"}\n' * 2)
    with redirect_stderr(Terminal()) as terminal:
        assert main(["eval", "--data", str(rows), "--steps", "1", "--max-new-tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["count"] == 2
    assert "rows.jsonl, --steps 1 1/2" in terminal.getvalue()

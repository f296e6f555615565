"""Shell completion."""

import subprocess
import sys
from pathlib import Path

import pytest
import shellingham

from gesso.cli.main import main
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPT = (
    "import runpy, sys\n"
    "try:\n    runpy.run_module('gesso', run_name='__main__', alter_sys=True)\n"
    "finally:\n    assert not {'torch', 'tokenizers', 'huggingface_hub'} & sys.modules.keys(), 'slow imports'\n"
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("gesso ge", {"generate"}), ("gesso serve --max", {"--max-adapters", "--max-batch", "--max-length"})],
)
def test_bash_completes_commands_and_options_without_slow_imports(
    words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.toml").write_text("not TOML")  # must not disturb a shell
    for name, value in {
        "PYTHONPATH": str(ROOT),
        "GESSO_CONFIG": str(tmp_path / "broken.toml"),
        "_GESSO_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=PATIENCE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == expected


def test_the_completion_script_can_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))  # whatever runs the tests
    with pytest.raises(SystemExit, match="0"):
        main(["--show-completion"])
    assert "_GESSO_COMPLETE=complete_bash" in capsys.readouterr().out

"""The wheel: complete, and usable without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gesso
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the build backend of this environment, so that pip needs no network."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(target)]
    done = subprocess.run([*PIP, "wheel", *options, str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = target.iterdir()
    return built


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gesso").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        "gesso/py.typed",
        "gesso/bundled/gesso-mini/model-00001-of-00002.safetensors",
        "gesso/eval/structured/words.toml",
        "gesso/serve/studio/index.html",
    } <= package
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package


def test_the_installed_wheel_runs_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [
        *PIP,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(sys.executable, "-m", "gesso", "--version") == f"gesso {gesso.__version__}\n"
    script = "import gesso, gesso.cli.sudoku, gesso.eval.sudoku.task; print(gesso.__file__)"
    assert Path(run(sys.executable, "-c", script).strip()).is_relative_to(target)
    assert (target / "bin" / "gesso").exists()

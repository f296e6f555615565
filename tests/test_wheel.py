"""The wheel: complete, small, and usable without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gesso
from gesso.demo import EXAMPLES
from tests import environments
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
MOST_BYTES = 60_000_000


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


def test_the_wheel_has_name_and_version_and_is_small(wheel: Path) -> None:
    assert wheel.name == f"gesso_lm-{gesso.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < MOST_BYTES


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gesso").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        "gesso/py.typed",
        "gesso/bundled/gesso-mini/model-00001-of-00002.safetensors",
        "gesso/demo/puzzle.jpg",
        "gesso/eval/structured/words.toml",
        "gesso/serve/studio/index.html",
    } <= package
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package


def test_the_wheel_has_no_benchmarks_and_no_tools(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"gesso"}
    bench = {path.stem for path in (ROOT / "gesso" / "bench").glob("*.py")}
    assert bench == {"__init__", "device", "large_cpu", "model", "requests", "serve", "server"}


def test_the_installed_wheel_runs_the_demo_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    commands = environments.create(tmp_path / "venv")
    here = tmp_path / "empty"
    here.mkdir()
    # Neither the model nor the file of defaults that a person has chosen changes the demo.
    (tmp_path / "config.toml").write_text('[sudoku]\nmodel = "/nowhere"\n')
    settings = {"GESSO_MODEL": "/nowhere", "GESSO_CONFIG": str(tmp_path / "config.toml")}
    environment = environments.variables(commands) | settings
    install = [str(commands / "pip"), "install", "--quiet", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, env=environment)

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=here, env=environment, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    gesso_command = os.fspath(commands / "gesso")
    assert run(gesso_command, "--version") == f"gesso {gesso.__version__}\n"
    package = Path(run(os.fspath(commands / "python"), "-c", "import gesso; print(gesso.__file__)").strip()).parent
    assert package.is_relative_to(tmp_path / "venv")
    printed = run(gesso_command, "demo")
    for example in EXAMPLES:
        assert example.answer.strip() in printed, example.title
    assert f"gesso infill {package}/demo/point.txt --seed 1" in printed
    assert list(here.iterdir()) == []

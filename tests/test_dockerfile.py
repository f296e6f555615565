"""The steps of the Dockerfile, in a virtual environment: the same commands, on copies of the same files. They build and
install the wheel, which is complete, small, and usable without the repository."""

import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import gesso
from gesso.demo import EXAMPLES
from tests import environments
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
MOST_BYTES = 60_000_000  # of the wheel; its files are larger, since it is compressed
SYSTEM = ("apt-get ", "useradd ")  # change the system; only Docker runs them


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = filter(None, re.sub(r"\\\n", "", text).splitlines())
    return [(name, arguments.strip()) for name, _, arguments in (line.partition(" ") for line in lines)]


def arguments_of(name: str) -> str:
    (arguments,) = [arguments for instruction, arguments in instructions() if instruction == name]
    return arguments


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the steps in a virtual environment and return the directory of its commands."""
    pytest.importorskip("hatchling")
    root = tmp_path_factory.mktemp("image")
    commands = environments.create(root / "venv")
    work = root
    for name, arguments in instructions():
        if name == "WORKDIR":
            work = root / arguments.strip("/")
            work.mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            copy(arguments.split(), work)
        elif name == "RUN" and not arguments.startswith(SYSTEM):
            line = arguments.replace("/src", str(root / "src"))
            done = subprocess.run(
                ["sh", "-c", line], cwd=work, env=environments.variables(commands), capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return commands


def copy(names: list[str], work: Path) -> None:
    *sources, target = names
    context = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in sources:
        assert f"!{source}" in context, f".dockerignore hides {source}"
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, work / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, work / target)


def test_the_base_image_is_pinned_to_a_patch_release():
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", arguments_of("FROM"))


def test_dependencies_are_installed_before_the_sources_are_copied():
    """Docker then takes that layer from its cache when only the sources have changed."""
    steps = [f"{name} {arguments}" for name, arguments in instructions()]
    requirements = next(i for i, step in enumerate(steps) if "-r requirements.txt" in step)
    copied = [step for step in steps[:requirements] if step.startswith("COPY ")]
    assert copied == ["COPY pyproject.toml constraints.txt ./"]
    assert "--no-deps" in next(step for step in steps[requirements + 1 :] if "pip install" in step)


def test_the_steps_install_the_command_of_the_entry_point(built, tmp_path):
    (program,) = json.loads(arguments_of("ENTRYPOINT"))
    environment = environments.variables(built)
    done = subprocess.run([built / program, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == f"gesso {gesso.__version__}\n", done.stderr


@pytest.fixture
def site(built: Path) -> Path:
    """The directory into which the steps have installed the wheel."""
    (directory,) = built.parent.glob("lib/python*/site-packages")
    return directory


def test_the_wheel_has_name_and_version_and_is_small(site: Path) -> None:
    assert (site / f"gesso_lm-{gesso.__version__}.dist-info").is_dir()
    assert sum(path.stat().st_size for path in files_of(site)) < MOST_BYTES


def test_the_wheel_has_every_file_of_the_package_and_no_other(site: Path) -> None:
    package = {path.relative_to(ROOT).as_posix() for path in files_of(ROOT)}
    assert {
        "gesso/py.typed",
        "gesso/bundled/gesso-mini/model-00001-of-00002.safetensors",
        "gesso/demo/puzzle.jpg",
        "gesso/eval/structured/words.toml",
        "gesso/serve/studio/index.html",
    } <= package
    assert {path.relative_to(site).as_posix() for path in files_of(site)} == package


def files_of(directory: Path) -> list[Path]:
    """Return the files of the package below a directory."""
    return [path for path in (directory / "gesso").rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_the_wheel_has_no_benchmarks_and_no_tools(site: Path) -> None:
    (info,) = site.glob("gesso_lm-*.dist-info")
    installed = (info / "RECORD").read_text(encoding="utf-8").splitlines()
    assert {line.partition("/")[0] for line in installed} == {"gesso", info.name, ".."}  # .. is the command
    bench = {path.stem for path in (ROOT / "gesso" / "bench").glob("*.py")}
    assert bench == {"__init__", "device", "large_cpu", "model", "requests", "serve", "server"}


def test_the_installed_wheel_runs_the_demo_away_from_the_repository(built: Path, site: Path, tmp_path: Path) -> None:
    here = tmp_path / "empty"
    here.mkdir()
    # Neither the model nor the file of defaults that a person has chosen changes the demo.
    (tmp_path / "config.toml").write_text('[sudoku]\nmodel = "/nowhere"\n')
    settings = {"GESSO_MODEL": "/nowhere", "GESSO_CONFIG": str(tmp_path / "config.toml")}
    environment = environments.variables(built) | settings
    command = [built / "gesso", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for example in EXAMPLES:
        assert example.answer.strip() in done.stdout, example.title
    assert f"gesso infill {site}/gesso/demo/point.txt --seed 1" in done.stdout
    assert list(here.iterdir()) == []


def test_the_command_serves_and_the_health_check_passes(built, own_cache, tmp_path):
    health = re.search(r"CMD (\[.*\])$", arguments_of("HEALTHCHECK"))
    assert health
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (program,) = json.loads(arguments_of("ENTRYPOINT"))
    serve = [built / program, *json.loads(arguments_of("CMD")), "--port", port]
    environment = environments.variables(built) | {"GESSO_API_KEYS": "a-key"}
    python, *rest = json.loads(health[1])
    check = [built / python, *(word.replace(":8000", f":{port}") for word in rest)]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, tmp_path / "log")
        subprocess.run(check, env=environment, check=True, timeout=PATIENCE)
    finally:
        server.terminate()
        assert server.wait(PATIENCE) == 0


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            urlopen(url, timeout=PATIENCE).close()
        except (URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"no answer: {log.read_text()}")

"""The configuration file: defaults of options by name, and errors that name the file and the key."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from gesso.cli.defaults import config_path, read_defaults
from gesso.cli.main import app

Main = Callable[..., SimpleNamespace]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("GESSO_CONFIG", str(path))
        return path

    return write


def test_a_table_sets_options_of_its_command_and_the_command_line_wins(
    main: Main, config: Callable[[str], Path], tiny_directory: Path
) -> None:
    config(f'model = "{tiny_directory}"\nseed = 3\n[generate]\nmax-new-tokens = 4\nsteps = 2\nstopping = "fixed"\n')
    found = json.loads(main("generate", "hi", "--json").out)
    assert (found["seed"], found["usage"]["denoising_steps"]) == (3, 2)
    assert found["usage"]["completion_tokens"] <= 4
    given = json.loads(main("generate", "hi", "--json", "--seed", "5", "--steps", "3").out)
    assert (given["seed"], given["usage"]["denoising_steps"]) == (5, 3)


def test_a_key_at_the_top_applies_to_every_command_that_has_the_option(config: Callable[[str], Path]) -> None:
    path = config(
        'device = "cpu"\nsteps = 8\nlive = false\n[generate]\nsteps = 4\n[serve]\nmax-batch = 2\nray = false\n'
    )
    found = read_defaults(path, COMMANDS)
    assert found["generate"] == {"device": "cpu", "steps": "4", "live": False}
    assert found["chat"] == {"device": "cpu", "steps": "8", "live": False}
    assert found["eval"] == {"device": "cpu", "steps": ["8"]}, "an option that may be repeated"
    assert found["serve"] == {"device": "cpu", "max_batch": "2", "on_ray": False}
    assert found["quantize"] == {}


def test_the_environment_takes_precedence_over_the_file(
    main: Main, config: Callable[[str], Path], tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config('model = "no/such/directory/here"\n')
    monkeypatch.setenv("GESSO_MODEL", str(tiny_directory))
    assert main("generate", "hi", "--max-new-tokens", "2", "--steps", "1").code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantise = 1", ["unknown option 'quantise'", "is 'quantize' meant?"]),
        ("max_new_tokens = 1", ["unknown option 'max_new_tokens'", "is 'max-new-tokens' meant?"]),
        ("[generat]", ["unknown command [generat]", "is 'generate' meant?"]),
        ("[generate]\nport = 80", ["unknown option 'port' of [generate]"]),
        ("[generate]\nmax-new-tokens = 0", ["max-new-tokens for gesso generate", "greater than or equal to 1"]),
        ("[generate]\nmax-new-tokens = [1, 2]", ["max-new-tokens for gesso generate", "expected one text or number"]),
        ("[generate]\nsteps = 'many'", ["steps for gesso generate", "must be an integer from 1 to 1,000"]),
        ("[generate]\nlive = 'no'", ["live for gesso generate", "expected true or false"]),
        ("steps = ", ["is not TOML"]),
    ],
)
def test_an_unusable_file_is_one_line_that_names_the_file_and_the_key(
    main: Main, config: Callable[[str], Path], text: str, words: list[str]
) -> None:
    path = config(text)
    done = main("generate", "hi")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"gesso: {path}") and done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err


def test_the_file_is_in_the_configuration_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GESSO_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path() is None
    usual = tmp_path / "gesso" / "config.toml"
    usual.parent.mkdir()
    usual.touch()
    assert config_path() == usual
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".config").symlink_to(tmp_path)
    assert config_path() == tmp_path / "home" / ".config" / "gesso" / "config.toml"
    monkeypatch.setenv("GESSO_CONFIG", "")
    assert config_path() is None


def test_a_missing_file_that_was_named_is_an_error(main: Main, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GESSO_CONFIG", str(tmp_path / "absent.toml"))
    done = main("generate", "hi")
    assert done.code == 2 and "absent.toml cannot be read" in done.err

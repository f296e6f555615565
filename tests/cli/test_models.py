"""`gesso pull`, `gesso models` and `gesso rm`, and commands that download a model when they first use it."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

from gesso.checkpoint import aliases
from gesso.cli import options
from gesso.cli.terminal import print_styled
from gesso.errors import DoesNotFitError
from tests.hub import COMMIT, Hub

NAME = "someone/small"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def small(hub: Hub, tiny_directory: Path) -> Hub:
    hub.add(NAME, tiny_directory)
    return hub


def test_pull_prints_the_path_and_models_lists_it(main, small: Hub, tmp_path: Path) -> None:
    done = main("pull", NAME)
    assert done.code == 0 and done.out.strip() == str(tmp_path / "hub/models--someone--small/snapshots" / COMMIT)
    listed = {row["name"]: row for row in json.loads(main("models", "--json").out)}
    assert listed[NAME]["state"] == "complete" and listed["gesso-mini"]["state"] == "bundled"
    assert {"name", "format", "precision", "bytes", "total_bytes", "last_used", "state", "path"} == set(listed[NAME])
    table = main("models").out
    assert NAME in table and "fp32" in table and "gesso-sudoku" in table


def test_failed_pull_is_one_line_and_exit_code_1(main, small: Hub) -> None:
    small.cut["model.safetensors"] = 5000
    done = main("pull", NAME)
    assert done.code == 1 and done.out == "" and done.err.splitlines()[-1].startswith(f"gesso: {NAME} ")
    assert "incomplete" in main("models").out


@pytest.mark.parametrize("name", ["gesso-mini", "word", "./directory", "a/b/c", "diffusiongemma:other"])
def test_pull_of_no_hub_name_is_exit_code_2(main, hub: Hub, name: str) -> None:
    done = main("pull", name)
    assert done.code == 2 and "owner/model" in done.err and hub.requests == []


def test_rm_asks_and_reports_the_bytes(main, small: Hub) -> None:
    main("pull", NAME)
    assert main("rm", NAME).code == 2, "nobody to ask"
    done = main("rm", NAME, stdin=Terminal("n\n"))
    assert "nothing deleted" in done.err and NAME in done.err
    assert NAME in main("models").out
    done = main("rm", NAME, "--yes")
    assert done.code == 0 and "MB freed" in done.err and NAME not in main("models").out
    assert main("rm", NAME, "--yes").code == 1
    assert main("rm", "diffusiongemma", "--yes").code == 2


def test_chat_takes_the_model_as_an_argument_and_downloads_it(main, small: Hub) -> None:
    done = main("chat", NAME, "-m", "someone/else", "--max-new-tokens", "4", "--seed", "1", "--json", stdin="hi\n")
    assert done.code == 0 and json.loads(done.out)["seed"] == 1
    assert "model.safetensors" in small.downloads()


def test_alias_is_replaced_for_the_device_and_explained(main, small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def choose(*options: object) -> aliases.CheckpointChoice:
        given.append(options)
        return aliases.CheckpointChoice(NAME, None, "chosen for a reason")

    monkeypatch.setattr(options, "choose_here", choose)  # a real choice would be a model of 26B parameters
    short = ("--max-new-tokens", "4", "--seed", "1", "--json")
    done = main("chat", "diffusiongemma", "--device", "cpu", "--memory", "0.5", *short, stdin="hi\n")
    assert given == [("cpu", "0.5", "none")] and "chosen for a reason" in done.err
    assert done.code == 0 and "model.safetensors" in small.downloads()


def test_serve_checks_its_options_before_it_downloads(main, small: Hub, servers: list[Any]) -> None:
    for wrong in (("--host", "0.0.0.0"), ("--api-key-file", "/nowhere"), ("--host", "256.0.0.1", "--without-keys")):
        assert main("serve", NAME, *wrong).code == 2
    assert small.requests == [] and not servers
    assert main("serve", NAME, "--port", "0").code == 0
    assert "model.safetensors" in small.downloads() and servers[0].engine.model == NAME


def test_serve_resolves_the_alias_in_a_process_that_ends(
    main, small: Hub, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gesso.cli import serve

    with pytest.raises(DoesNotFitError, match=r"no GPU; .* 1\.0 GB of host memory"):
        serve.choose_apart("cpu", "1GB", "auto")
    # A real choice would be a model of 26B parameters.
    monkeypatch.setattr(serve, "choose_apart", lambda *_: aliases.CheckpointChoice(NAME, "fp8", "because"))
    done = main("serve", "diffusiongemma", "--port", "0")
    assert done.code == 0 and "because" in done.err
    assert (servers[0].engine.model, servers[0].engine.quantize, servers[0].name) == (NAME, "fp8", "diffusiongemma")


def test_serve_on_ray_leaves_the_alias_to_each_replica(main, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed: list[object] = []

    def deploy(settings: object, *_: object) -> str:
        deployed.append(settings)
        return "deployed"

    ray = SimpleNamespace(Cluster=SimpleNamespace, WITHOUT_STORE="nothing stored", deploy=deploy)
    monkeypatch.setitem(sys.modules, "gesso.serve.ray", ray)
    done = main("serve", "diffusiongemma", "--ray", "--device", "cpu", "--memory", "1GB")
    assert done.code == 0, "resolved here, the alias would not fit"
    assert "nothing stored" in done.err
    assert (deployed[0].engine.model, deployed[0].name) == ("diffusiongemma", "diffusiongemma")


def test_a_piped_table_shows_whole_names(capsys: pytest.CaptureFixture[str]) -> None:
    name = "an-owner-with-a-long-name/a-model-with-an-even-longer-name-in-some-precision"
    table = Table(*"abcd")
    table.add_row(name, *["and more in other columns"] * 3)
    print_styled(lambda console: console.print(table))
    assert name in capsys.readouterr().out

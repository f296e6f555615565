"""`gesso pull`, `gesso models` and `gesso rm`, and commands that download a model when they first use it."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table

import gesso
from gesso.checkpoint import aliases
from gesso.cli import models, options
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


def test_rm_asks_and_reports_the_bytes(main, small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    main("pull", NAME)
    assert main("rm", NAME).code == 2, "nobody to ask"
    asked: list[str] = []
    monkeypatch.setattr(models, "_confirmed", lambda question: bool(asked.append(question)))
    assert "nothing deleted" in main("rm", NAME, stdin=Terminal()).err and NAME in asked[0]
    assert NAME in main("models").out
    done = main("rm", NAME, "--yes")
    assert done.code == 0 and "MB freed" in done.err and NAME not in main("models").out
    assert main("rm", NAME, "--yes").code == 1
    assert main("rm", "diffusiongemma", "--yes").code == 2


def test_chat_takes_the_model_as_an_argument_and_downloads_it(main, small: Hub) -> None:
    done = main("chat", NAME, "-m", "someone/else", "--max-new-tokens", "4", "--seed", "1", "--json", stdin="hi\n")
    assert done.code == 0 and json.loads(done.out)["seed"] == 1
    assert "model.safetensors" in small.downloads()


def test_alias_is_replaced_for_the_device_and_explained(main, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def choose(*given: object) -> aliases.CheckpointChoice:
        seen.append(given)
        return aliases.CheckpointChoice(NAME, None, "chosen for a reason")

    def load(name: str, **given: object) -> None:
        seen.append((name, given["quantize"]))
        raise gesso.CheckpointError("far enough")

    monkeypatch.setattr(options, "choose_here", choose)
    monkeypatch.setattr("gesso.load", load)
    done = main("chat", "diffusiongemma", "--device", "cpu", "--memory", "0.5")
    assert seen == [("cpu", "0.5", "none"), (NAME, None)] and "chosen for a reason" in done.err


def test_serve_checks_its_options_before_it_downloads(main, small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from gesso.serve import run

    served: list[object] = []
    monkeypatch.setattr(run, "serve", lambda settings, *_, **__: served.append(settings))
    for wrong in (("--host", "0.0.0.0"), ("--api-key-file", "/nowhere"), ("--host", "256.0.0.1", "--without-keys")):
        assert main("serve", NAME, *wrong).code == 2
    assert small.requests == [] and not served
    assert main("serve", NAME, "--port", "0").code == 0
    assert "model.safetensors" in small.downloads() and served[0].engine.model == NAME


def test_serve_resolves_the_alias_in_a_process_that_ends(main, small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from gesso.cli import serve
    from gesso.serve import run

    served: list[object] = []
    monkeypatch.setattr(run, "serve", lambda settings, *_, **__: served.append(settings))
    with pytest.raises(DoesNotFitError, match=r"no GPU; .* 1\.0 GB of host memory"):
        serve.choose_apart("cpu", "1GB", "auto")
    monkeypatch.setattr(serve, "choose_apart", lambda *_: aliases.CheckpointChoice(NAME, "fp8", "because"))
    done = main("serve", "diffusiongemma", "--port", "0")
    assert done.code == 0 and "because" in done.err
    assert (served[0].engine.model, served[0].engine.quantize, served[0].name) == (NAME, "fp8", "diffusiongemma")


def test_serve_on_ray_leaves_the_alias_to_each_replica(main, monkeypatch: pytest.MonkeyPatch) -> None:
    from gesso.cli import serve

    deployed: list[object] = []

    def deploy(settings: object, *_: object) -> str:
        deployed.append(settings)
        return "deployed"

    ray = SimpleNamespace(Cluster=SimpleNamespace, WITHOUT_STORE="nothing stored", deploy=deploy)
    monkeypatch.setitem(sys.modules, "gesso.serve.ray", ray)
    monkeypatch.setattr("gesso.serve.ray", ray, raising=False)
    monkeypatch.setattr(serve, "choose_apart", lambda *_: pytest.fail("the alias was resolved here"))
    done = main("serve", "diffusiongemma", "--ray")
    assert done.code == 0 and "nothing stored" in done.err
    assert (deployed[0].engine.model, deployed[0].name) == ("diffusiongemma", "diffusiongemma")


def test_a_piped_table_shows_whole_names(capsys: pytest.CaptureFixture[str]) -> None:
    name = "an-owner-with-a-long-name/a-model-with-an-even-longer-name-in-some-precision"
    table = Table(*"abcd")
    table.add_row(name, *["and more in other columns"] * 3)
    print_styled(lambda console: console.print(table))
    assert name in capsys.readouterr().out

"""`gesso info`."""

import json
from pathlib import Path

import pytest

import gesso
from gesso.checkpoint.safetensors import INDEX
from gesso.checkpoint.write import save
from tests.cli.test_cli import Main
from tests.hub import Hub

pytestmark = pytest.mark.usefixtures("environment")


def test_info_describes_the_bundled_model(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GESSO_MODEL")
    done = main("info")
    assert done.code == 0 and "experts" in done.out and "\x1b" not in done.out
    assert done.out.startswith("the bundled model (gesso-mini)\n")
    found = json.loads(main("info", "--json").out)
    assert found["problems"] == []
    named = json.loads(main("info", "gesso-mini", "--json").out)
    assert (named.pop("name"), found.pop("name")) == ("gesso-mini", "the bundled model (gesso-mini)")
    assert named == found


def test_info_with_problems_is_exit_code_0(main: Main, tiny_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_directory / "config.json").read_text())
    done = main("info", str(tmp_path), "--json")
    assert done.code == 0
    assert any("tokenizer.json" in problem for problem in json.loads(done.out)["problems"])


def test_info_of_a_hub_name_downloads_no_weights(main: Main, tiny: gesso.Gesso, tmp_path: Path, hub: Hub) -> None:
    source = tmp_path / "source"
    save(tiny.model, source, source=tiny.directory, shard_bytes=100_000)
    assert (source / INDEX).exists()
    hub.add("owner/model", source)
    found = json.loads(main("info", "owner/model", "--gpu", "rtx-4090", "--json").out)
    assert not any(file.endswith(".safetensors") for file in hub.downloads())
    local = json.loads(main("info", str(source), "--gpu", "rtx-4090", "--json").out)
    assert found["problems"] == [] and found["weights"]["files"] == 0 < local["weights"]["files"]
    for part in ("parameters", "architecture", "memory", "gpu"):
        assert found[part] == local[part]
    assert "No weights here." in main("info", "owner/model").out
    main("generate", "hi", "-m", "owner/model", "--max-new-tokens", "4")
    assert any(file.endswith(".safetensors") for file in hub.downloads())


def test_info_names_the_kernels_that_triton_disables(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only a GPU with a Triton that lacks Gluon has missing kernels.
    monkeypatch.setattr("gesso.cli.info._missing_kernels", lambda: ["the kernels of attention_hopper do not work"])
    assert "On this machine, the kernels of attention_hopper do not work" in main("info").out
    assert json.loads(main("info", "--json").out)["missing_kernels"] == ["the kernels of attention_hopper do not work"]

"""The models on this machine: the list, the description of formats, and removal that stays inside the cache."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gesso.checkpoint import hub as hubs
from gesso.checkpoint import local
from gesso.checkpoint.cache import HubName, Repository
from gesso.errors import CheckpointError
from tests.hub import Hub

NAME, COPY, PACKED = (HubName(name) for name in ("someone/small", "someone/copy", "someone/packed"))
FILES = {"config.json": b'{"model_type": "diffusion_gemma", "dtype": "bfloat16"}', "model.safetensors": b"x" * 5000}


@pytest.fixture
def filled(hub: Hub) -> Hub:
    """A hub with a checkpoint, an identical copy of it, and a repository of GGUF files."""
    hub.add(str(NAME), FILES)
    hub.add(str(COPY), FILES)
    hub.add(str(PACKED), {"a-Q4_K_M.gguf": b"x" * 100, "a-Q8_0.gguf": b"x" * 200})
    return hub


def rows() -> dict[str, tuple[str, str, int, str]]:
    return {row.name: (row.format, row.precision, row.bytes, row.state) for row in local.models()}


def test_bundled_models_are_listed_without_a_cache(hub: Hub) -> None:
    assert {name: row[::3] for name, row in rows().items()} == {
        name: ("safetensors", "bundled") for name in ("gesso-mini", "gesso-sudoku")
    }


def test_models_are_listed_with_format_precision_size_and_state(filled: Hub) -> None:
    hubs.pull(NAME)
    hubs.pull(COPY, weights=False)
    hubs.pull(HubName(str(PACKED), "Q8_0"))
    found, config = rows(), len(FILES["config.json"])
    assert found["someone/small"] == ("safetensors", "bf16", config + 5000, "complete")
    assert found["someone/copy"] == ("safetensors", "bf16", config, "configuration")
    assert found["someone/packed:a-Q8_0.gguf"] == ("gguf", "Q8_0", 200, "complete")
    assert len(found) == 5 and all(row.last_used for row in local.models())


def test_interrupted_download_is_listed_as_incomplete_and_removed(filled: Hub, tmp_path: Path) -> None:
    filled.cut["model.safetensors"] = 3000
    with pytest.raises(CheckpointError):
        hubs.pull(NAME)
    row = next(row for row in local.models() if row.name == str(NAME))
    assert (row.state, row.bytes) == ("incomplete", 3000 + len(FILES["config.json"]))
    assert row.total_bytes == 5000 + len(FILES["config.json"])
    assert local.remove(NAME) >= 3000
    assert not Repository.of(str(NAME)).path.exists()


def test_models_of_other_programs_are_listed_if_gesso_can_run_them(filled: Hub) -> None:
    for name, kind in ((NAME, b"diffusion_gemma"), (COPY, b"llama")):
        directory = hubs.pull(name)
        shutil.rmtree(directory.parent.parent / "gesso")
        config = (directory / "config.json").resolve()
        config.write_bytes(config.read_bytes().replace(b"diffusion_gemma", kind))
    assert rows()["someone/small"][3] == "complete" and "someone/copy" not in rows()


def test_old_version_is_marked_and_removed_too(filled: Hub) -> None:
    hubs.pull(NAME)
    filled.commit = "2" * 40
    filled.repositories[str(NAME)]["model.safetensors"] = b"y" * 5000
    hubs.pull(NAME)
    assert [row.state for row in local.models() if row.name == str(NAME)] == ["old", "complete"]
    assert local.remove(NAME) >= 10_000
    assert str(NAME) not in rows()


def test_removing_a_model_keeps_copies_with_the_same_commit(hub: Hub) -> None:
    names = [HubName(f"someone/copy{i}") for i in range(6)]
    for name in names:
        hub.add(str(name), FILES)
        hubs.pull(name)
    for i, name in enumerate(names, 1):
        assert local.remove(name) >= 5000
        assert [row for row in rows() if row.startswith("someone/")] == [str(one) for one in names[i:]]
    with pytest.raises(CheckpointError, match="is not in .* gesso models"):
        local.remove(names[0])


def test_one_gguf_file_is_removed_and_the_others_stay(filled: Hub) -> None:
    for label in ("Q4_K_M", "Q8_0"):
        hubs.pull(HubName(str(PACKED), label))
    assert local.remove(HubName(str(PACKED), "Q8_0")) == 200
    assert [name for name in rows() if name.startswith(str(PACKED))] == ["someone/packed:a-Q4_K_M.gguf"]
    filled.status["/"] = 503
    assert hubs.find(HubName(str(PACKED), "Q4_K_M")).read_bytes() == b"x" * 100
    local.remove(HubName(str(PACKED), "Q4_K_M"))
    assert not Repository.of(str(PACKED)).path.exists()


def test_removing_a_gguf_file_keeps_those_of_other_programs_and_of_longer_names(filled: Hub) -> None:
    path = hubs.pull(HubName(str(PACKED), "Q4_K_M"))
    for name in ("b-Q6_K.gguf", "UD-a-Q4_K_M.gguf"):
        path.with_name(name).write_bytes(b"y")
    assert local.remove(HubName(str(PACKED), path.name)) == 100
    assert sorted(file.name for file in path.parent.iterdir()) == ["UD-a-Q4_K_M.gguf", "b-Q6_K.gguf"]


def test_removal_does_not_follow_links_out_of_the_cache(filled: Hub, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    directory = hubs.pull(NAME)
    (directory / "link.json").symlink_to(outside / "precious")
    (directory.parent / ("3" * 40)).symlink_to(outside, target_is_directory=True)
    (directory.parent.parent / "blobs" / "folder").symlink_to(outside, target_is_directory=True)
    local.remove(NAME)
    assert not directory.parent.parent.exists() and (outside / "precious").exists()
    hubs.pull(HubName(str(PACKED), "Q8_0"))
    Repository.of(str(PACKED)).path.rename(outside / "moved")
    Repository.of(str(PACKED)).path.symlink_to(outside / "moved", target_is_directory=True)
    for name in (PACKED, HubName(str(PACKED), "Q8_0")):
        with pytest.raises(CheckpointError, match="symbolic link"):
            local.remove(name)
    assert list((outside / "moved").rglob("*.gguf"))


GROUP = {"type": "float", "num_bits": 8}


@pytest.mark.parametrize("config, expected", [
    ({}, ("unknown", "unknown")),
    ({"text_config": {"dtype": "bfloat16"}}, ("safetensors", "bf16")),
    ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": GROUP}}}},
     ("compressed-tensors", "fp8")),
    ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "a": {"weights": GROUP}, "b": {"weights": {"type": "int", "num_bits": 4}}}}},
     ("compressed-tensors", "fp8+int4")),
    ({"quantization_config": {"quant_method": "compressed-tensors"}}, ("compressed-tensors", "unknown")),
    ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, ("modelopt", "nvfp4")),
    ({"quantization": {"group_size": 64, "bits": 4}}, ("mlx", "int4")),
    ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, ("mlx", "mxfp4")),
    ({"quantization_config": {"quant_method": "gptq"}}, ("gptq", "unknown")),
])  # fmt: skip
def test_format_and_precision_are_read_from_the_configuration(
    config: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert local.describe(config) == expected

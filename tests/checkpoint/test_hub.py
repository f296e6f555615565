"""Downloads from the hub: the files chosen, continued, verified, and never loadable before they are complete."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gesso
from gesso.checkpoint import download
from gesso.checkpoint import hub as hubs
from gesso.checkpoint.cache import INDEX, PARTIAL, HubName, Repository
from gesso.checkpoint.find import find
from gesso.checkpoint.write import save
from gesso.errors import CheckpointError
from tests.hub import COMMIT, Hub
from tests.waiting import wait_until

NAME = "someone/small"
CONFIG = b'{"model_type": "diffusion_gemma"}'


@pytest.fixture
def small(hub: Hub, tiny_directory: Path) -> Hub:
    """A hub with the tiny checkpoint."""
    hub.add(NAME, tiny_directory)
    return hub


def pull(name: str = NAME, **options: bool) -> Path:
    found = HubName.parse(name)
    assert found is not None
    return hubs.pull(found, **options)


def partials(tmp_path: Path) -> list[Path]:
    return list(tmp_path.rglob(f"*{PARTIAL}"))


def gguf(architecture: str, size: int = 2000) -> bytes:
    """Return the beginning of a GGUF file, and zeros."""
    key, value = b"general.architecture", architecture.encode()
    header = struct.pack(f"<4sIQQQ{len(key)}sIQ", b"GGUF", 3, 0, 1, len(key), key, 8, len(value)) + value
    return header.ljust(size, b"\0")


# --- complete downloads ---------------------------------------------------------------------------------------------


def test_hub_name_is_downloaded_once_and_loads(small: Hub, tiny: gesso.Gesso, tmp_path: Path) -> None:
    g = gesso.load(NAME)
    assert g.generate("hi", max_new_tokens=4, seed=0).tokens == tiny.generate("hi", max_new_tokens=4, seed=0).tokens
    assert g.directory == tmp_path / "hub" / "models--someone--small" / "snapshots" / COMMIT
    small.requests.clear()
    assert find(NAME) == g.directory
    assert small.requests == [], "a complete model needs no hub"


def test_pull_downloads_only_what_a_new_commit_changes(small: Hub, tmp_path: Path) -> None:
    first = pull()
    assert "model.safetensors" in small.downloads()
    pull()
    assert small.downloads() == {}
    small.commit = "2" * 40
    small.repositories[NAME]["generation_config.json"] = b'{"max_new_tokens": 5}'
    second = pull()
    assert small.downloads() == {"generation_config.json": None}
    assert second != first and find(NAME) == second
    assert gesso.load(NAME).defaults.max_new_tokens == 5


def test_smallest_set_of_files_is_chosen(hub: Hub, tiny: gesso.Gesso, tmp_path: Path) -> None:
    save(tiny.model, tmp_path / "model", source=tiny.directory, shard_bytes=100_000)
    hub.add(NAME, tmp_path / "model")
    needed = set(hub.repositories[NAME])
    assert INDEX in needed
    others = ("README.md", "model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json", "tokenizer.model",
              "consolidated.safetensors", "original/params.json", "model-Q4_K_M.gguf")  # fmt: skip
    hub.repositories[NAME] |= dict.fromkeys(others, b"?")
    assert {path.name for path in pull().iterdir()} == needed
    assert hub.downloads().keys() == needed
    del hub.repositories[NAME]["tokenizer.json"]
    hub.commit = "2" * 40
    assert (pull() / "tokenizer.model").exists()


def test_without_weights_only_the_other_files_are_downloaded(small: Hub) -> None:
    directory = find(NAME, weights=False)
    assert (directory / "config.json").exists() and not list(directory.glob("*.safetensors"))
    small.requests.clear()
    assert find(NAME, weights=False) == directory and small.requests == []
    assert (find(NAME) / "model.safetensors").exists()
    assert small.downloads() == {"model.safetensors": None}


def test_adapter_is_downloaded_without_config_json(hub: Hub) -> None:
    hub.add("someone/adapter", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x", "README.md": b"x"})
    found = find("someone/adapter")
    assert {path.name for path in found.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.parametrize("name", ["someone/packed:Q4_K_M", "someone/packed:small-Q4_K_M.gguf", "someone/packed:q4_k_m"])
def test_gguf_is_one_file_chosen_by_its_label(hub: Hub, name: str) -> None:
    content = gguf("diffusion-gemma")
    hub.add("someone/packed", {"small-Q4_K_M.gguf": content, "small-Q4_K.gguf": b"x", "small-Q8_0.gguf": b"x"})
    found = huggingface_file(name)
    assert found.name == "small-Q4_K_M.gguf" and found.read_bytes() == content
    assert set(hub.downloads()) == {"small-Q4_K_M.gguf"}
    assert huggingface_file(name) == found and hub.requests == []


def huggingface_file(name: str) -> Path:
    found = HubName.parse(name)
    assert found is not None
    return hubs.find(found)


@pytest.mark.parametrize("label", ["Q5_0", "Q4"])
def test_gguf_label_of_no_file_lists_the_files(hub: Hub, label: str) -> None:
    hub.add("someone/packed", {"a-Q4_K_M.gguf": b"x", "b-Q8_0.gguf": b"x"})
    with pytest.raises(CheckpointError, match=r"a-Q4_K_M.gguf, b-Q8_0.gguf"):
        pull(f"someone/packed:{label}")
    with pytest.raises(CheckpointError, match=r"packed:FILE: a-Q4_K_M.gguf, b-Q8_0.gguf"):
        pull("someone/packed")
    hub.repositories["someone/packed"]["b-Q4_K_M.gguf"] = b"x"
    with pytest.raises(CheckpointError, match="has 2 GGUF files .* a-Q4_K_M.gguf, b-Q4_K_M.gguf"):
        pull("someone/packed:Q4_K_M")


def test_file_system_without_symbolic_links(small: Hub, tiny: gesso.Gesso, monkeypatch: pytest.MonkeyPatch) -> None:
    small.repositories[NAME]["copy.json"] = small.repositories[NAME]["generation_config.json"]  # one blob, two files

    def refused(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refused)  # the file system of the test has them
    directory = pull()
    assert not any(path.is_symlink() for path in directory.iterdir())
    assert (directory / "copy.json").read_bytes() == (directory / "generation_config.json").read_bytes()
    assert gesso.load(NAME).config == tiny.config
    small.requests.clear()
    pull()
    assert small.downloads() == {}


def test_files_of_other_programs_are_verified_not_downloaded_again(small: Hub, tmp_path: Path) -> None:
    directory = pull()
    shutil.rmtree(directory.parent.parent / "gesso")  # now it is like a download of huggingface_hub
    small.requests.clear()
    assert find(NAME) == directory
    assert small.downloads() == {}
    weights = directory / "model.safetensors"
    shutil.rmtree(directory.parent.parent / "gesso")
    weights.resolve().write_bytes(b"x" * weights.stat().st_size)
    assert find(NAME) == directory
    assert set(small.downloads()) == {"model.safetensors"}
    assert weights.read_bytes() == small.repositories[NAME]["model.safetensors"]


# --- interrupted and damaged downloads ------------------------------------------------------------------------------


def not_loadable(small: Hub) -> None:
    """Assert that the model cannot be loaded from the cache alone."""
    small.status["/"] = 503
    with pytest.raises(CheckpointError, match="503"):
        gesso.load(NAME)
    small.status.clear()


def test_broken_connection_is_continued_and_never_loadable_before(small: Hub, tmp_path: Path) -> None:
    small.cut["model.safetensors"] = 50_000
    with pytest.raises(CheckpointError, match="continues where it stopped"):
        find(NAME)
    assert [path.stat().st_size for path in partials(tmp_path)] == [50_000]
    assert not list(tmp_path.rglob("snapshots/*/*")), "other programs see no part of it either"
    not_loadable(small)
    del small.cut["model.safetensors"]
    small.requests.clear()
    pull()
    assert small.downloads() == {"model.safetensors": "bytes=50000-"}
    assert partials(tmp_path) == [] and gesso.load(NAME)


def test_server_that_ignores_range_sends_the_whole_file(small: Hub, tmp_path: Path) -> None:
    small.cut["model.safetensors"] = 50_000
    with pytest.raises(CheckpointError):
        pull()
    small.cut.clear()
    small.ignore_range = True
    assert (pull() / "model.safetensors").read_bytes() == small.repositories[NAME]["model.safetensors"]


def test_killed_process_is_continued(small: Hub, tmp_path: Path) -> None:
    piece = 10 << 20  # bytes; the process writes so many at a time
    content = os.urandom(2 * piece + 1000)
    small.repositories[NAME]["model.safetensors"] = content
    small.stall["model.safetensors"] = len(content) - 500
    with subprocess.Popen([sys.executable, "-m", "gesso", "pull", NAME], stderr=subprocess.PIPE) as process:
        wait_until(lambda: process.poll() is not None or any(p.stat().st_size >= piece for p in partials(tmp_path)))
        assert process.poll() is None
        process.kill()
    begun = partials(tmp_path)[0].stat().st_size
    assert begun >= piece
    small.stall.clear()
    small.released.set()
    not_loadable(small)
    small.requests.clear()
    directory = pull()
    assert small.downloads() == {"model.safetensors": f"bytes={begun}-"}
    assert (directory / "model.safetensors").read_bytes() == content


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])  # in LFS, and in Git
def test_wrong_hash_is_detected_and_nothing_is_loadable(small: Hub, tmp_path: Path, file: str) -> None:
    small.damaged.add(file)
    with pytest.raises(CheckpointError, match=f"{file} arrived damaged"):
        find(NAME)
    assert partials(tmp_path) == []
    not_loadable(small)
    small.damaged.clear()
    assert gesso.load(NAME)


def test_partial_file_with_wrong_bytes_is_not_kept(small: Hub, tmp_path: Path) -> None:
    small.cut["model.safetensors"] = 50_000
    with pytest.raises(CheckpointError):
        pull()
    small.cut.clear()
    partials(tmp_path)[0].write_bytes(b"x" * 50_000)
    with pytest.raises(CheckpointError, match="damaged"):
        pull()
    assert pull()


@pytest.mark.parametrize("wrong", [-10, 10])
def test_wrong_size_in_the_list_is_an_error(small: Hub, tmp_path: Path, wrong: int) -> None:
    small.sizes["model.safetensors"] = len(small.repositories[NAME]["model.safetensors"]) + wrong
    with pytest.raises(CheckpointError, match="size"):
        pull()
    assert partials(tmp_path) == []
    not_loadable(small)


def test_interrupted_update_keeps_the_old_version_loadable(small: Hub) -> None:
    first = pull()
    small.commit = "2" * 40
    small.repositories[NAME]["model.safetensors"] += b" "
    small.cut["model.safetensors"] = 5000
    with pytest.raises(CheckpointError):
        pull()
    assert find(NAME) == first


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_removed_blob_is_downloaded_again(small: Hub, file: str) -> None:
    directory = pull()
    (directory / file).resolve().unlink()
    assert (find(NAME) / file).is_file()


# --- refused before the download --------------------------------------------------------------------------------------


@pytest.fixture
def limit_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that sets the free bytes of the disk, in addition to those that a download leaves."""

    def limit(size: int) -> None:
        usage = shutil.disk_usage(tmp_path)._replace(free=download.SPARE + size)
        monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)  # no test can fill a disk

    return limit


def test_full_disk_is_reported_before_the_download(small: Hub, limit_disk: Callable[[int], None]) -> None:
    limit_disk(len(small.repositories[NAME]["model.safetensors"]) // 2)
    with pytest.raises(CheckpointError, match=r"needs 0\.0 GB more .* has 0\.1 GB free; nothing was downloaded"):
        pull()
    assert set(small.downloads()) <= {"config.json", INDEX}


def test_space_for_the_rest_is_enough(small: Hub, limit_disk: Callable[[int], None]) -> None:
    size = len(small.repositories[NAME]["model.safetensors"])
    small.cut["model.safetensors"] = size - 1000
    with pytest.raises(CheckpointError):
        pull()
    small.cut.clear()
    limit_disk(size // 2)
    assert pull()


def test_other_architecture_is_refused_before_its_weights(hub: Hub, tmp_path: Path) -> None:
    hub.add("someone/llama", {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x" * 5000})
    with pytest.raises(CheckpointError, match="'llama', but gesso runs only 'diffusion_gemma'"):
        find("someone/llama")
    assert set(hub.downloads()) == {"config.json"}
    hub.add("someone/packed", {"a-Q4_K_M.gguf": gguf("gemma3")})
    with pytest.raises(CheckpointError, match="'gemma3'"):
        pull("someone/packed:Q4_K_M")
    assert hub.downloads() == {"a-Q4_K_M.gguf": "bytes=0-127"}


# Names of files in the list of a repository: other directories, devices, streams, and tricks with URLs.
LEAVING = (
    "../x.json", "/etc/x.json", "..\\x.json", "nul", "CON.json", "aux.x.json", "COM1.json", "C:x.json", "a/b.json",
    "x\n.json", "..", ".", "", "~/x.json",
    "....//x.json", "%2e%2e/x.json", "x.json/../../x.json", "./x.json",
    "http://127.0.0.1/x.json", "//127.0.0.1/x.json", "file:///etc/x.json",
    "/dev/stdin/x.json", "CON/x.json", "x.json:stream", "x\0.json", "x\u202e.json", "\u2025/x.json", "x\r\n.json",
    "a" * 5000 + ".json",
)  # fmt: skip
# Names of models, which a user could be talked into.
MISLEADING = (
    "../x", "someone/..", "../../etc/passwd", "someone/../x", "someone/x/../../y", "someone/%2e%2e", "someone/x?y=1",
    "someone/x#y", "someone@127.0.0.1/x", "http://127.0.0.1/x", "//127.0.0.1/x", "someone/x\n", "someone/x y",
    "someone/\0", "someone\\x", "/dev/zero", "file:///etc/passwd", "someone/x:../../y", "someone/x@../../y",
    "a" * 300 + "/b",
)  # fmt: skip


@pytest.mark.parametrize("name", LEAVING)
def test_names_that_leave_the_directory_are_never_written(hub: Hub, tmp_path: Path, name: str) -> None:
    hub.add(NAME, {"config.json": CONFIG, "model.safetensors": b"x", name: b"x"})
    assert {path.name for path in pull().iterdir()} == {"config.json", "model.safetensors"}
    assert not list(tmp_path.rglob("x.json"))


@pytest.mark.parametrize("name", MISLEADING)
def test_hub_names_that_are_no_repository_are_not_requested(hub: Hub, tmp_path: Path, name: str) -> None:
    if HubName.parse(name) is not None:
        with pytest.raises(CheckpointError):
            pull(name)
    assert all(path.startswith("/api/models/") and ".." not in path for path, _ in hub.requests)
    assert not any(path.name in ("passwd", "x") for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "missing.safetensors", "pickle.bin", 3]
)
def test_index_may_only_name_listed_files(hub: Hub, name: object) -> None:
    index = json.dumps({"weight_map": {"a": name}}).encode()
    hub.add(NAME, {"config.json": CONFIG, INDEX: index, "../x.safetensors": b"x", "x.bin": b"x"})
    with pytest.raises(CheckpointError, match=INDEX):
        pull()


@pytest.mark.parametrize("commit", ["../../escape", "main", ""])
def test_commit_must_be_a_hash(small: Hub, commit: str) -> None:
    small.commit = commit
    with pytest.raises(CheckpointError, match="40 hexadecimal digits"):
        pull()


def test_file_with_a_malformed_hash_is_not_part_of_the_model(small: Hub) -> None:
    small.blob_ids = dict.fromkeys(small.repositories[NAME], "../../escape")
    with pytest.raises(CheckpointError, match="no config.json"):
        pull()


def test_pickles_are_never_downloaded(hub: Hub) -> None:
    hub.add(NAME, {"config.json": CONFIG, "pytorch_model.bin": b"x"})
    with pytest.raises(CheckpointError, match="no weights in safetensors"):
        pull()


@pytest.mark.parametrize("status, message", [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "Check the name"),
                                             (429, "Try again"), (500, "Try again"), (503, "Try again")])  # fmt: skip
def test_errors_of_the_hub_say_what_to_do(small: Hub, status: int, message: str) -> None:
    small.status["/api/"] = status
    with pytest.raises(CheckpointError, match=f"{NAME} .*status {status}.*{message}"):
        pull()
    small.status = {"tokenizer.json": status} if status != 429 else {}
    if small.status:
        with pytest.raises(CheckpointError, match=f"{NAME} .*status {status}.*{message}"):
            pull()
        small.status.clear()
    assert pull()


def test_malformed_token_is_not_printed(small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret\x07word")
    with pytest.raises(CheckpointError, match="HF_TOKEN") as caught:
        pull()
    assert "cret" not in str(caught.value) and "word" not in str(caught.value)


def test_token_is_sent_to_the_hub(small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hubs.request_headers()["authorization"] == "Bearer hf_secret"


def test_unreachable_hub_uses_what_another_program_downloaded(small: Hub) -> None:
    directory = pull()
    shutil.rmtree(directory.parent.parent / "gesso")
    small.status["/"] = 503
    assert find(NAME) == directory
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="503"):
        find(NAME)


def test_cache_that_cannot_be_written_still_has_what_another_program_downloaded(small: Hub, tmp_path: Path) -> None:
    directory = pull()
    shutil.rmtree(directory.parent.parent / "gesso")
    shutil.rmtree(tmp_path / "hub" / ".locks")
    (tmp_path / "hub" / ".locks").touch()
    assert find(NAME) == directory
    with pytest.raises(CheckpointError, match="cannot be stored"):
        pull()


def test_two_processes_do_not_download_at_once(small: Hub) -> None:
    repository = Repository.of(NAME)
    with repository.locked(), pytest.raises(CheckpointError, match="another process"), repository.locked(timeout=0.1):
        pass

"""Prompts in files: the same text in another process, damaged files, the bound, and other weights."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gesso
from gesso import Result
from gesso.checkpoint.safetensors import SINGLE
from gesso.engine.pieces import cut
from gesso.engine.prefix_files import SUFFIX, PrefixFiles
from gesso.errors import InputError
from tests.full_disk import full_disk
from tests.other_process import other_process_with

PROMPT = [3 + i * 7 % 300 for i in range(700)]  # two pieces of 256, and a rest
OPTIONS: dict[str, Any] = {"max_new_tokens": 6, "steps": 3, "seed": 4}


def load(model: Path, directory: Path | None) -> gesso.Gesso:
    return gesso.load(model, device="cpu", max_batch=1, cache_dir=directory)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


@pytest.fixture
def write(tiny_directory: Path, tmp_path: Path) -> Callable[..., Result]:
    """Return a function that writes with a newly loaded model and the cache of this test."""

    def run(prompt: list[int] = PROMPT, **options: Any) -> Result:
        return load(tiny_directory, tmp_path / "cache").generate(prompt, **OPTIONS | options)

    return run


@pytest.fixture
def expected(tiny_directory: Path) -> Iterator[Result]:
    yield load(tiny_directory, None).generate(PROMPT, **OPTIONS)


def test_a_stored_prompt_gives_the_same_text(
    write: Callable[..., Result], expected: Result, tiny_directory: Path, tmp_path: Path
) -> None:
    first, second = write(), write()
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 512)
    assert first.tokens == second.tokens == expected.tokens
    assert len(files(tmp_path / "cache")) == 2
    by_token = {"write": "tokens", "steps": 1, "max_new_tokens": 6, "seed": 4}
    plain = load(tiny_directory, None).generate(PROMPT, **by_token)  # type: ignore[arg-type]
    again = write(**by_token)
    assert again.tokens == plain.tokens and again.usage.cached_tokens == 512


def test_prompts_share_the_files_of_their_common_beginning(
    write: Callable[..., Result], tiny_directory: Path, tmp_path: Path
) -> None:
    write()
    other = [*PROMPT[:300], *range(50, 250), *PROMPT[:100]]
    found = write(other)
    assert found.usage.cached_tokens == 256
    assert found.tokens == load(tiny_directory, None).generate(other, **OPTIONS).tokens
    assert len(files(tmp_path / "cache")) == 3


def test_another_process_reads_the_prompt(tiny_directory: Path, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 12
    first = load(tiny_directory, tmp_path).generate(text, **OPTIONS)
    command = [sys.executable, "-m", "gesso", "generate", text, "-m", str(tiny_directory), "--device", "cpu", "--json",
               "--max-new-tokens", "6", "--steps", "3", "--seed", "4", "--threads", str(torch.get_num_threads()),
               "--cache-dir", str(tmp_path)]  # fmt: skip
    second = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert tuple(second["tokens"]) == first.tokens
    assert (first.usage.cached_tokens, second["usage"]["cached_tokens"]) == (0, 512)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "text"])
def test_a_damaged_file_is_ignored_with_a_warning_and_written_again(
    write: Callable[..., Result], expected: Result, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    write()
    for path in files(tmp_path / "cache"):
        data = path.read_bytes()
        if damage == "foreign":
            save_file({"k.0": load_file(path)["k.0"]}, path)
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            path.write_bytes({"cut": data[:-100], "flipped": flipped, "empty": b"", "text": b"hello" * 100}[damage])
    found = write()
    assert found.tokens == expected.tokens and found.usage.cached_tokens == 0
    assert any("damaged" in record.message for record in caplog.records)
    assert write().usage.cached_tokens >= 256


def test_other_weights_do_not_match(write: Callable[..., Result], tiny_directory: Path, tmp_path: Path) -> None:
    write()
    other = tmp_path / "other"
    shutil.copytree(tiny_directory, other)
    tensors = load_file(other / SINGLE)
    name = "model.decoder.layers.0.self_attn.k_proj.weight"
    save_file(tensors | {name: tensors[name] + 0.5}, other / SINGLE, {"format": "pt"})
    found = load(other, tmp_path / "cache").generate(PROMPT, **OPTIONS)
    assert found.usage.cached_tokens == 0
    assert found.tokens == load(other, None).generate(PROMPT, **OPTIONS).tokens
    for options in ({"quantize": "int4"}, {"dtype": "bfloat16"}):
        g = gesso.load(tiny_directory, device="cpu", cache_dir=tmp_path / "cache", **options)  # type: ignore[arg-type]
        assert g.generate(PROMPT, **OPTIONS).usage.cached_tokens == 0, options


def test_requests_with_an_adapter_do_not_use_stored_prompts(tiny_directory: Path, tmp_path: Path) -> None:
    g = load(tiny_directory, tmp_path / "cache")
    g.generate(PROMPT, **OPTIONS)
    stored = files(tmp_path / "cache")
    again = load(tiny_directory, tmp_path / "cache")
    job = again.engine._start(again.request(PROMPT, **OPTIONS))
    job.adapter_epoch = 1  # that of an adapter
    again.engine.running[job.id] = job
    again.engine.scheduler.waiting.append(job)
    while again.engine.busy:
        again.engine.step()
    assert job.usage.cached_tokens == 0 and files(tmp_path / "cache") == stored


def test_the_least_recently_used_files_are_deleted_at_the_limit(tiny: gesso.Gesso, tmp_path: Path) -> None:
    cache = tiny.model.new_cache(1, 600)
    cache.lengths[0] = 256
    texts, cuts = [[i] * 256 for i in range(4)], cut(256, (), 256)
    PrefixFiles(tmp_path, "a").write(cache, 0, texts[0], cuts)
    size = files(tmp_path)[0].stat().st_size
    bounded = PrefixFiles(tmp_path, "a", limit=3 * size)
    for text in texts[1:3]:
        bounded.write(cache, 0, text, cuts)
    for age, text in ((30, texts[1]), (20, texts[2]), (10, texts[0])):
        path = bounded._paths(text, cuts)[256]
        os.utime(path, (path.stat().st_mtime - age, path.stat().st_mtime - age))
    bounded.write(cache, 0, texts[3], cuts)
    assert [bounded.stored(text, cuts) for text in texts] == [256, 0, 256, 256]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 3 * size
    PrefixFiles(tmp_path / "small", "a", limit=size - 1).write(cache, 0, texts[0], cuts)
    assert not files(tmp_path / "small"), "a file beyond the limit is not written"


def test_what_a_killed_process_has_left_is_removed_and_files_of_others_stay(
    write: Callable[..., Result], tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    token = "0123456789abcdef"
    for name in ("a" * 64 + SUFFIX, "model"):
        (directory / f".{name}.{token}.partial").touch()
    write()
    assert [path.name for path in directory.glob(".*")] == [f".model.{token}.partial"]


def test_a_prompt_is_stored_later_if_another_process_is_storing_one(
    write: Callable[..., Result], tmp_path: Path, expected: Result
) -> None:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    with other_process_with(directory / ".prefix.lock"):
        assert write().tokens == expected.tokens
        assert files(directory) == [directory / ".prefix.lock"]
    write()
    assert len(files(directory)) == 2


def test_a_directory_that_cannot_be_used_is_reported(
    tiny_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cache directory .* cannot be created"):
        load(tiny_directory, tmp_path / "file" / "cache")
    g = load(tiny_directory, tmp_path / "cache")
    with full_disk(1000):
        assert g.generate(PROMPT, **OPTIONS).tokens and "File too large" in caplog.text


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o770])
def test_stored_prompts_are_private_and_an_open_directory_is_reported(
    write: Callable[..., Result], tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    before = os.umask(0o022)
    try:
        write()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(directory)} == {0o600}
    warned = [record.message for record in caplog.records if "open to other users" in record.message]
    assert len(warned) == (mode != 0o700)
    assert not warned or f"mode {mode:o}" in warned[0] and "chmod 700" in warned[0]


def test_progress_is_reported_while_a_prompt_is_read(tiny_directory: Path) -> None:
    g, seen = load(tiny_directory, None), []
    g.engine.on_read = lambda done, total: seen.append((done, total))
    g.generate(PROMPT, **OPTIONS)
    assert seen == [(256, 700), (512, 700), (700, 700)]

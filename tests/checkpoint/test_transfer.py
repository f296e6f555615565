"""Move stored tensors to a device, one by one or by threads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gesso.checkpoint import transfer
from gesso.checkpoint.huggingface import in_full
from gesso.checkpoint.safetensors import read_header
from gesso.errors import CheckpointError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

TENSORS = {
    "float": torch.randn(7, 5),
    "half": torch.randn(3, dtype=torch.bfloat16),
    "bytes": torch.arange(11, dtype=torch.uint8),  # odd: the next tensor is not aligned
    "wide": torch.randn(2, 3, dtype=torch.float64),
    "codes": torch.randn(4, 4).to(torch.float8_e4m3fn),
    "none": torch.empty(0, 4),
}


@pytest.fixture
def stored(tmp_path: Path):
    save_file(TENSORS, tmp_path / "one.safetensors")
    save_file({f"other.{name}": tensor for name, tensor in TENSORS.items()}, tmp_path / "two.safetensors")
    return read_header(tmp_path / "one.safetensors") | read_header(tmp_path / "two.safetensors")


def same(found: torch.Tensor, name: str) -> bool:
    expected = TENSORS[name.removeprefix("other.")]
    return (
        found.shape == expected.shape
        and found.dtype == expected.dtype
        and torch.equal(found.cpu().view(torch.uint8), expected.view(torch.uint8))
    )


def test_every_tensor_arrives_unchanged_and_in_order(stored):
    recipes = [(name, in_full(part)) for name, part in stored.items()]
    found = [(name, parts) for name, _, parts in transfer.fetched(recipes, DEVICE, "")]
    assert [name for name, _ in found] == [name for name, _ in recipes]
    assert all(same(part, name) for name, (part,) in found)


def test_threads_read_neighbours_at_once_and_files_in_chunks(stored):
    parts = [part for part in stored.values() if part.nbytes]
    assert len(transfer.runs_of(parts)) == 2, "one run per file"
    with transfer.ThreadedReader(DEVICE, chunk=16) as reader:  # most tensors take several chunks
        tensors = reader.begin(parts[::-1])()
    assert all(same(tensor, part.name) for tensor, part in zip(tensors, parts[::-1], strict=True))


@pytest.mark.parametrize("reader", [transfer.DirectReader, lambda: transfer.ThreadedReader(torch.device("cpu"))])
def test_file_that_shrinks_after_its_header_was_read_is_named(stored, reader):
    part = stored["wide"]
    with part.file.open("r+b") as file:
        file.truncate(part.offset + 8)
    with reader() as opened, pytest.raises(CheckpointError, match=r"one\.safetensors.*wide"):
        opened.begin((part,))()


def test_progress_reports_all_bytes_once(stored):
    reports = []
    recipes = [(name, in_full(part)) for name, part in stored.items()]
    with transfer.watched(lambda done, total: reports.append((done, total))):
        list(transfer.fetched(recipes, torch.device("cpu"), ""))
    total = sum(part.nbytes for part in stored.values())
    assert reports[-1] == (total, total)
    assert len(reports) == len(recipes)
    assert reports == sorted(reports)

"""Datasets of the hub: which files a name means, and that they are downloaded once and verified."""

import pytest

from gesso.checkpoint.cache import ManifestEntry
from gesso.checkpoint.datasets import DatasetName, choose, find_dataset
from gesso.errors import CheckpointError, InputError
from gesso.train.files import SUFFIXES, lines

ROW, OTHER = b'{"text": "a"}\n', b'{"text": "b"}\n'
NAME = "owner/rows"
FILES = {
    "README.md": b"# Rows",
    "dataset_infos.json": b"{}",
    "data/train-00000-of-00002.jsonl": ROW,
    "data/train-00001-of-00002.jsonl": ROW + ROW,
    "data/test.jsonl": OTHER,
}


def chosen(name, *files):
    parsed = DatasetName.parse(name)
    assert parsed is not None
    return choose(parsed, dict.fromkeys(files, ManifestEntry(1, "0" * 40)), SUFFIXES)


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        (NAME, ["train.jsonl", "test.jsonl"], ["train.jsonl"]),
        (f"{NAME}:test", ["train.jsonl", "test.jsonl"], ["test.jsonl"]),
        (f"{NAME}:test", ["test/a.json", "train/a.json"], ["test/a.json"]),
        (NAME, ["b.jsonl", "a.jsonl"], ["a.jsonl", "b.jsonl"]),
        (NAME, ["train.jsonl", "train.parquet"], ["train.jsonl"]),
        (NAME, ["data/trainer.jsonl", "data/train-0.parquet"], ["data/train-0.parquet"]),
        (f"{NAME}:b/train.jsonl", ["a/train.jsonl", "b/train.jsonl"], ["b/train.jsonl"]),
        (NAME, ["dataset_infos.json", "all.json"], ["all.json"]),
        (f"{NAME}:main", ["main/train.jsonl", "main/test.jsonl", "other/train.jsonl"], ["main/train.jsonl"]),
        (f"{NAME}:main", ["main/a.jsonl", "other/a.jsonl"], ["main/a.jsonl"]),
    ],
)
def test_name_means_the_files_of_a_split_in_one_format(name, files, expected):
    assert chosen(name, *files) == expected


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        (f"{NAME}:dev", ["train.jsonl", "test.jsonl"], "owner/rows:FILE: test.jsonl, train.jsonl"),
        (NAME, ["test.jsonl"], "no data files of split 'train'"),
        (NAME, ["a/train.jsonl", "b/train.jsonl"], "several folders"),
        (NAME, ["images.zip"], "no files that gesso reads"),
    ],
)
def test_ambiguous_names_are_rejected_with_the_files(name, files, reason):
    with pytest.raises(InputError, match=reason):
        chosen(name, *files)


@pytest.mark.parametrize("text", ["rows", "owner/rows:", "owner/rows:../x", "owner/rows:/etc/x", "a/b/c", "./a/b"])
def test_other_texts_are_no_dataset_names(text):
    assert DatasetName.parse(text) is None


def test_a_split_is_downloaded_once_and_read_in_order(hub):
    hub.add(f"datasets/{NAME}", FILES)
    assert [(line, raw) for _, line, raw in lines([NAME])] == [(1, ROW), (2, ROW), (3, ROW)]
    assert len(hub.downloads()) == 2
    assert len(list(lines([NAME]))) == 3
    assert hub.requests == [], "files that are here need no request"
    assert len(list(lines([f"{NAME}:test"]))) == 1
    assert list(hub.downloads()) == ["test.jsonl"]


def test_a_damaged_file_is_rejected_and_downloaded_again(hub):
    hub.add(f"datasets/{NAME}", FILES)
    hub.damaged.add("data/test.jsonl")
    name = DatasetName(NAME, "test")
    with pytest.raises(CheckpointError, match="arrived damaged"):
        find_dataset(name, SUFFIXES)
    hub.damaged.clear()
    (path,) = find_dataset(name, SUFFIXES)
    assert path.read_bytes() == OTHER


def test_an_interrupted_download_keeps_the_files_that_arrived(hub):
    hub.add(f"datasets/{NAME}", FILES)
    hub.damaged.add("data/train-00001-of-00002.jsonl")
    with pytest.raises(CheckpointError, match="arrived damaged"):
        find_dataset(DatasetName(NAME), SUFFIXES)
    hub.damaged.clear()
    hub.downloads()
    find_dataset(DatasetName(NAME), SUFFIXES)
    assert list(hub.downloads()) == ["train-00001-of-00002.jsonl"]


def test_an_unknown_dataset_is_one_line_with_advice(hub):
    with pytest.raises(CheckpointError, match=r"owner/none could not be downloaded .* set HF_TOKEN"):
        find_dataset(DatasetName("owner/none"), SUFFIXES)


def test_names_of_files_cannot_leave_the_cache(hub, tmp_path):
    hub.add(f"datasets/{NAME}", {"../../train.jsonl": ROW, "data/train.jsonl": ROW})
    assert [path.name for path in find_dataset(DatasetName(NAME), SUFFIXES)] == ["train.jsonl"]

"""Data files of every kind give the same rows."""

import json
import sys

import pytest

from gesso.errors import InputError
from gesso.train.files import lines

ROWS = [
    {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So.\nYes."}]},
    {"prompt": "a, ]", "completion": "ä"},
]


def read(path):
    return [(line, json.loads(raw)) for _, line, raw in lines([str(path)])]


@pytest.mark.parametrize("indent", [None, 2])
def test_json_array_has_the_rows_of_json_lines(tmp_path, indent):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "a.json").write_text("\ufeff " + json.dumps(ROWS, indent=indent) + "\n")
    (tmp_path / "lines.json").write_text((tmp_path / "a.jsonl").read_text())
    assert read(tmp_path / "a.json") == read(tmp_path / "a.jsonl") == read(tmp_path / "lines.json")
    (tmp_path / "empty.json").write_text("[]")
    assert read(tmp_path / "empty.json") == []


def test_duplicate_keys_of_an_array_are_still_found(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "a", "text": "b"}]')
    ((_, _, raw),) = lines([str(tmp_path / "a.json")])
    assert raw == b'{"text": "a", "text": "b"}'


@pytest.mark.parametrize("content", ['[{"text": "a"}', '[{"text": "a"}, {"te', '[{"text": "a"}] more', "[}]"])
def test_broken_array_is_rejected_by_name(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json is not a JSON array"):
        read(tmp_path / "a.json")


def test_parquet_file_has_the_rows_without_the_nulls_of_other_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="an optional package")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {key: None for row in ROWS for key in row}
    parquet.write_table(pyarrow.Table.from_pylist([{**columns, **row} for row in ROWS]), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [(1, ROWS[0]), (2, ROWS[1])]
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet"):
        read(tmp_path / "a.parquet")


def test_parquet_without_its_package_names_the_extra_to_install(tmp_path, monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"needs the package pyarrow: pip install 'gesso-lm\[train\]'"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["gone/chats.jsonl", "gone.parquet", "a:b:c", "~/x"])
def test_missing_file_is_named_without_a_request_to_the_hub(name):
    with pytest.raises(InputError, match="no such file"):
        list(lines([name]))

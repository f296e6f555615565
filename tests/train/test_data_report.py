"""The report on training data: examples, lengths and rejected rows."""

import io
import json
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from gesso.train.data_report import inspect, render
from tests.train.datasets import REPLY, USER, dataset, thought, write


def shown(report: Any, styled: bool = False) -> str:
    stream = io.StringIO()
    colours = {"force_terminal": True, "color_system": "standard"} if styled else {"color_system": None}
    render(report, Console(file=stream, width=80, highlight=False, markup=False, **colours))
    return stream.getvalue()


def test_data_report_marks_targets_and_names_every_rejected_row(tmp_path, tokenizer):
    two = {"messages": [USER, thought("Hm.", "No."), USER, REPLY]}
    name = write(tmp_path / "a.jsonl", two, *[b"{"] * 50, {"prompt": "[b]p", "completion": "c\x1b[2J"}, {"text": "a"})
    report = inspect(dataset(tokenizer, name), tokenizer, examples=2)
    assert (report.rows, report.good, len(report.rejected)) == (53, 3, 50)
    assert (report.responses, report.context_only, report.response_tokens) == (3, 1, 4 + 6 + 2)
    assert sum(bin.examples for bin in report.histogram) == 3
    assert [sample.line for sample in report.samples] == [1, 52]
    text = shown(report)
    assert "«So.<turn|>»" in text and "[b]p«c␛[2J<eos>»" in text and "\x1b" not in text
    assert all(f"{name}:{line}: not JSON" in text for line in range(2, 52))
    assert "53 rows: 3 good, 50 rejected" in text and "1 responses of earlier turns are context only" in text
    assert "«" not in shown(report, styled=True) and "\x1b[1;4mSo.<turn|>" in shown(report, styled=True)


def test_data_report_as_json(tmp_path, tokenizer):
    report = inspect(dataset(tokenizer, write(tmp_path / "a.jsonl", {"text": "a"}, b"{")), tokenizer)
    data = json.loads(json.dumps(asdict(report)))
    assert data["samples"][0]["parts"] == [{"text": "<bos>", "learnt": False}, {"text": "a<eos>", "learnt": True}]
    assert data["rejected"][0]["line"] == 2


def test_data_report_without_good_rows(tmp_path, tokenizer):
    report = inspect(dataset(tokenizer, write(tmp_path / "a.jsonl", b"{")), tokenizer)
    assert report.histogram == () and "0 good, 1 rejected" in shown(report)


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_histogram_has_at_most_12_bins_of_one_width_and_counts_all(tmp_path, tokenizer, count):
    texts = [{"text": "x" * (1 + 73 * n)} for n in range(count)]
    bins = inspect(dataset(tokenizer, write(tmp_path / "a.jsonl", *texts)), tokenizer).histogram
    assert 1 <= len(bins) <= 12 and sum(bin.examples for bin in bins) == count
    assert len({bin.high - bin.low for bin in bins}) == 1
    assert all(left.high + 1 == right.low for left, right in zip(bins, bins[1:], strict=False))


def test_long_example_is_shown_without_its_middle(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"prompt": "p" * 3900, "completion": "c"})
    text = shown(inspect(dataset(tokenizer, name), tokenizer))
    assert "«c<eos>»" in text and "characters …]" in text and "p" * 1001 not in text

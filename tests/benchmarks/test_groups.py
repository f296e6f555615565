"""The groups of kernels of a step, and their distance to the floor."""

import json
from io import StringIO

import pytest
from rich.console import Console

import gesso
from benchmarks import groups, step
from benchmarks.groups import ATTENTION, EXPERTS, GAPS, OTHERS, ROWS, VOCABULARY
from benchmarks.step import Span
from gesso.bench.model import step_bytes
from gesso.errors import InputError
from tests.tiny import make


def spans(*named):
    """Return spans of a name, a start and an end."""
    return [Span(name, start, end, end - start) for name, start, end in named]


def test_groups_and_gaps_add_up_to_the_step_and_overlap_counts_once():
    found = groups.group_times(
        spans(
            ("_product", 0, 10),  # before attention
            ("_attend", 10, 20),
            ("_choose", 25, 30),
            ("_gated", 30, 40),
            ("_up_fp8", 32, 50),
            ("_product", 41, 55),  # of the dense half
            ("_join", 55, 60),
            ("_product", 60, 61),  # of the next layer
            ("_logits", 61, 70),
            ("void at::native::sort", 70, 71),
        )
    )
    assert found == {
        GAPS: 5, ATTENTION: 21, ROWS: 10, EXPERTS: 25, VOCABULARY: 9, OTHERS: 1,
    }  # fmt: skip
    assert sum(found.values()) == 71


def test_the_longest_beginning_of_a_name_decides():
    names = ("_probability", "_probabilities_2", "_group", "_gated_fp8", "_combine", "attend_hopper", "_memset")
    assert [groups._group(name, False) for name in names] == [
        VOCABULARY,
        VOCABULARY,
        EXPERTS,
        EXPERTS,
        ATTENTION,
        ATTENTION,
        OTHERS,
    ]


def test_the_bytes_of_all_groups_are_those_of_a_step_and_the_cache(tiny):
    model, cache = tiny.model, tiny.model.new_cache(2, 64)
    empty = groups.group_bytes(model, cache)
    assert sum(empty.values()) == step_bytes(model)
    cache.lengths[:] = [3, 60]
    expected = sum(
        2 * layer.k[0][0].nbytes * (63 if layer.window is None else 3 + min(60, layer.window - 1))
        for layer in cache.layers
    )
    assert groups.group_bytes(model, cache)[ATTENTION] - empty[ATTENTION] == expected


def test_a_step_does_not_read_the_vision_tower(tmp_path):
    directory = make(tmp_path / "seeing", sees=True)
    seeing, text_only = gesso.load(directory).model, gesso.load(directory, text_only=True).model
    assert seeing.vision is not None
    assert step_bytes(seeing) == step_bytes(text_only)
    assert sum(groups.group_bytes(seeing, seeing.new_cache(1, 64)).values()) == step_bytes(seeing)


FOUND = {
    "ms_per_step": 2.0, "between_ms": 0.5, "calls": 3.0,
    "rows": [{"name": "_up", "calls": 1, "us": 1500.0, "ms": 1.5}],
    "groups": [
        {"name": EXPERTS, "ms": 1.5, "GB": 5.0, "floor_ms": 1.0, "ratio": 1.5},
        {"name": GAPS, "ms": 0.5, "GB": 0.0, "floor_ms": 0.0, "ratio": None},
    ],
}  # fmt: skip


def shown(*arguments):
    groups.render(arguments[0], Console(file=(text := StringIO()), width=100), *arguments[1:])
    return " ".join(text.getvalue().split())


def test_groups_are_shown_with_their_floor():
    text = shown(FOUND)
    assert "experts and dense half │ 1.500 │ 5.00 │ 1.000 │ 1.50" in text and "a step: 2.000 ms, 3 launches" in text
    assert groups.groups(spans(("_up", 0, 3000)), 2, {EXPERTS: 10**9}, 1e12) == [
        {"name": EXPERTS, "ms": 1.5, "GB": 1.0, "floor_ms": 1.0, "ratio": 1.5}
    ]


def test_an_earlier_run_is_compared_by_group_and_by_kernel():
    earlier = {**FOUND, "ms_per_step": 2.5, "groups": [{**FOUND["groups"][0], "ms": 2.0}]}
    earlier["rows"] = [{**FOUND["rows"][0], "ms": 1.9}, {"name": "_old", "calls": 1, "us": 100.0, "ms": 0.1}]
    text = shown(FOUND, earlier)
    assert "2.000 │ -0.500" in text and "(before: 2.500)" in text
    assert "_up │ 1.500 │ 1.900 │ -0.400" in text and "_old │ 0.000 │ 0.100 │ -0.100" in text


def test_a_step_is_compared_with_a_file(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(step, "measure", lambda *_, **__: FOUND)  # a measurement differs from run to run
    step.main(["--json"])
    (tmp_path / "old.json").write_text(capsys.readouterr().out)
    step.main(["--compare", str(tmp_path / "old.json")])
    assert "(before: 2.000)" in capsys.readouterr().out
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    for name in ("other.json", "missing.json"):
        with pytest.raises(InputError, match=f"{name}.* benchmarks.step --json"):
            step.main(["--compare", str(tmp_path / name)])

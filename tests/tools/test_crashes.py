"""The load tests `crashes` and `mixed` in small: known texts while engines are killed, and no process left behind."""

import pytest

from tools.load import crashes, mix, mixed, soak

SOME = ("chat, streamed", "completion", "suffix, best of 4", "JSON schema", "tool call", "tokenize")


@pytest.fixture(autouse=True)
def few_kinds(monkeypatch):
    """One request of some kinds: each is answered once without load, which takes longer than the test itself."""
    monkeypatch.setattr(mix, "KINDS", {kind: mix.KINDS[kind] for kind in SOME})
    for module in (crashes, mixed, soak):
        monkeypatch.setattr(module, "SEEDS", 1)


def test_same_seed_same_text_while_engines_are_paused_and_killed(served_model):
    report = crashes.measure(12, kills=1, arguments=("--model", str(served_model), "--device", "cpu"))
    assert report["different"] == report["lost"] == []
    assert (report["requests"], report["engine_kills"]) == (12, 1)
    assert report["passed"]


def test_mixed_requests_are_answered_and_leave_nothing_behind(served_model):
    report = mixed.measure(12, arguments=("--model", str(served_model), "--device", "cpu"))
    assert report["wrong"] == [] and report["statuses"] == {"200": 12}
    assert not any(report["left_behind"].values())
    assert [set(quarter) for quarter in report["resident_mb_after_each_quarter"]] == [
        {"server", "serve.worker", "serve.prepare.process"}
    ] * 4

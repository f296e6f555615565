"""The load test `crashes` in small: known texts while engines are killed."""

import pytest

from tools.load import crashes, mix, soak

SOME = ("chat, streamed", "completion", "suffix, best of 4", "JSON schema", "tool call", "tokenize")


@pytest.fixture(autouse=True)
def few_kinds(monkeypatch):
    """One request of some kinds: each is answered once without load, which takes longer than the test itself."""
    monkeypatch.setattr(mix, "KINDS", {kind: mix.KINDS[kind] for kind in SOME})
    for module in (crashes, soak):
        monkeypatch.setattr(module, "SEEDS", 1)


def test_same_seed_same_text_while_engines_are_paused_and_killed(served_model):
    report = crashes.measure(12, kills=1, arguments=("--model", str(served_model), "--device", "cpu"))
    assert report["different"] == report["lost"] == []
    assert (report["requests"], report["engine_kills"]) == (12, 1)
    assert report["passed"]

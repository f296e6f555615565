"""The load tests `crashes` and `mixed` in small: known texts while engines are killed, and no process left behind."""

from tools.load import crashes, mixed


def test_same_seed_same_text_while_engines_are_paused_and_killed(served_model):
    report = crashes.measure(24, kills=2, arguments=("--model", str(served_model), "--device", "cpu"))
    assert report["different"] == report["lost"] == []
    assert (report["requests"], report["engine_kills"]) == (24, 2)
    assert report["passed"]


def test_mixed_requests_are_answered_and_leave_nothing_behind(served_model):
    report = mixed.measure(24, arguments=("--model", str(served_model), "--device", "cpu"))
    assert report["wrong"] == [] and report["statuses"] == {"200": 24}
    assert not any(report["left_behind"].values())
    assert [set(quarter) for quarter in report["resident_mb_after_each_quarter"]] == [
        {"server", "serve.worker", "serve.prepare.process"}
    ] * 4

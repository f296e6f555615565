"""The load test of requests that join and leave: it passes with a real server, and notices what it must."""

import json

import pytest

from tools.load import __main__, joining


@pytest.mark.server
def test_joining_measures_a_server(served_model, monkeypatch):
    monkeypatch.setattr(joining, "SECONDS", 300.0)
    monkeypatch.setattr(joining, "BEAT", 0.1)
    short = tuple({**settings, "steps": 2} for settings in joining.SETTINGS)
    monkeypatch.setattr(joining, "SETTINGS", short)
    arguments = ("-m", str(served_model), "--device", "cpu", "--max-batch", "3")
    found = joining.measure(None, 0.5, 3, arguments, prompt=8, new=8)
    assert found["passed"] and found["errors"] == [] and found["requests"] >= 3
    assert found["ready_s"] >= found["after_weights_s"] >= 0
    assert found["before"] == found["after_readiness"] == {"captures": 0, "compilations": 0, "kernel_loads": 0}


@pytest.fixture
def fake(monkeypatch):
    """A measurement without a server: clients that note one first draft, and counters."""
    first, counts, errors = [0.1], [dict.fromkeys(joining.COUNTERS, 3)], []
    monkeypatch.setattr(joining, "exchange", lambda *_: (200, json.dumps({"tokens": [1, 2]}).encode()))
    monkeypatch.setattr(joining, "counters", lambda url: counts.pop() if len(counts) > 1 else counts[0])
    monkeypatch.setattr(joining, "BEAT", 0.0)

    def run(client, until):
        client.firsts += first
        client.errors += errors

    monkeypatch.setattr(joining.Client, "run", run)
    return first, counts, errors


def test_fast_first_drafts_and_still_counters_pass(fake, capsys):
    __main__.main(["joining", "--url", "http://127.0.0.1:1", "--seconds", "0"])
    assert json.loads(capsys.readouterr().out)["passed"]


@pytest.mark.parametrize("problem", ["slow", "captures", "compilations", "kernel_loads", "errors", "nothing"])
def test_a_slow_draft_a_moved_counter_an_error_or_no_request_fails(fake, capsys, problem):
    first, counts, errors = fake
    if problem == "slow":
        first[0] = joining.SECONDS + 0.01
    elif problem == "errors":
        errors.append("500")
    elif problem == "nothing":
        first.clear()
    else:
        counts.append({**counts[0], problem: 2})
    with pytest.raises(SystemExit) as ended:
        __main__.main(["joining", "--url", "http://127.0.0.1:1", "--seconds", "0"])
    assert ended.value.code == 1 and not json.loads(capsys.readouterr().out)["passed"]

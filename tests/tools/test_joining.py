"""The load test of requests that join and leave: it passes with a real server, and notices what it must."""

import pytest

from tools.load import joining
from tools.load.joining import COUNTERS, SECONDS, Client


@pytest.mark.server
def test_joining_measures_a_server(plain_server):
    short = [{**settings, "steps": 2} for settings in joining.SETTINGS]
    crowd = [Client(plain_server.url, number, [300, 301, 302], prompt=8, new=8, settings=short) for number in range(3)]
    report = joining.run(crowd, seconds=0.5, limit=300.0, beat=0.1)
    assert report["passed"] and report["errors"] == [] and report["requests"] >= 3
    assert report["before"] == report["after_readiness"] == dict.fromkeys(COUNTERS, 0)


STILL = dict.fromkeys(COUNTERS, 3)


def test_fast_first_drafts_and_still_counters_pass():
    assert joining.report([Client("", 0, (), firsts=[0.1])], STILL, STILL)["passed"]


@pytest.mark.parametrize(
    ("clients", "after"),
    [
        ([Client("", 0, (), firsts=[SECONDS + 0.01])], STILL),
        ([Client("", 0, (), firsts=[0.1], errors=["500"])], STILL),
        ([Client("", 0, ())], STILL),
        *(([Client("", 0, (), firsts=[0.1])], STILL | {name: 4}) for name in COUNTERS),
    ],
    ids=["slow", "error", "nothing", *COUNTERS],
)
def test_a_slow_draft_a_moved_counter_an_error_or_no_request_fails(clients, after):
    assert not joining.report(clients, STILL, after)["passed"]

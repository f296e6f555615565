"""Reports of the attack and soak tests, without a server."""

import pytest

from tools.load import attack_table, mix
from tools.load.bystander import percentile
from tools.load.soak import Log, Sample, _memory
from tools.load.wire import UNANSWERED, Answer

pytestmark = pytest.mark.attack
RIGHT = b'{"choices": [{"text": "a", "finish_reason": "stop"}]}'
DIED = "the engine died while generating this answer and is being restarted; try again"


def test_answers_count_as_correct_wrong_lost_or_rejected():
    log, expected = Log(), [["a", "stop"]]
    log.note("completion", Answer(200, RIGHT, 1.0), expected)
    log.note("completion", Answer(200, RIGHT.replace(b'"a"', b'"b"'), 1.0), expected)
    log.note("completion", Answer(200, RIGHT[:20], 1.0), expected)  # cut off
    log.note("completion", Answer(UNANSWERED, b"", 1.0, "no answer within 1 s"), expected)
    log.note("completion", Answer(500, b"", 1.0), expected)  # an error without a reason
    log.note("completion", Answer(429, b'{"error": {"message": "too many wait"}}', 1.0), expected)
    log.note("completion", Answer(500, b'{"error": {"message": "%s"}}' % DIED.encode(), 1.0), expected)
    assert (log.requests.total(), len(log.wrong), len(log.lost), log.ended_with_engine) == (7, 1, 3, 1)
    assert log.errors == {"429: too many wait": 1}


def test_a_stream_without_an_end_counts_as_lost():
    events = b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": "b"}]}\n\n'
    log = Log()
    log.note("completion, streamed", Answer(200, events + b"data: [DONE]\n\n", 1.0), "ab")
    log.note("completion, streamed", Answer(200, events, 1.0), "ab")
    error = b'data: {"error": {"message": "%s"}}\n\n' % DIED.encode()
    log.note("completion, streamed", Answer(200, events + error, 1.0), "ab")
    assert (len(log.wrong), len(log.lost), log.ended_with_engine) == (0, 1, 1)


def test_growth_compares_the_last_minute_with_the_sixth():
    samples = [Sample(at, 100 if at < 360 else 103, 500 + at, 1 + at // 400) for at in range(600)]
    found = _memory(samples, 600)
    assert found["server_growth_percent"] == 3.0 and found["compared_windows_seconds"] == [300, 360, 540, 600]
    assert len(found["engines_warm_peak_mb"]) == 2


def test_percentiles_are_measured_values():
    assert percentile([], 99) is None
    assert [percentile([3, 1, 2], share) for share in (50, 99, 100)] == [2, 3, 3]


def test_attacks_are_selected_by_letter():
    assert [attack.letter for attack in attack_table.chosen("c,e")] == ["c1", "c2", "e"]
    assert len(attack_table.chosen(None)) == len(attack_table.ATTACKS)
    assert len({attack.name for attack in attack_table.ATTACKS}) == len(attack_table.ATTACKS)


def test_every_endpoint_is_part_of_the_soak():
    paths = {path for path, _ in mix.KINDS.values()}
    assert paths == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/edits",
        "/v1/responses",
        "/tokenize",
        "/detokenize",
    }

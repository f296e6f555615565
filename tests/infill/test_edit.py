"""Edit: only the span changes, and a low level changes little of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gesso
from gesso.engine.driver import Driver
from tests.engine.models import with_engine
from tests.watched import Watched

BRIEF = {"steps": 2, "canvas_length": 24, "seed": 1}
TEXT = "The quick brown fox jumps over the lazy dog."
SPAN = (10, 25)


@st.composite
def texts_with_spans(draw):
    text = draw(st.text(min_size=1, max_size=40))
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return text, (start, end)


@pytest.mark.parametrize("model", ["tiny", "marked"])
@settings(derandomize=True, deadline=None, max_examples=30)
@given(drawn=texts_with_spans(), level=st.sampled_from([0.1, 0.6, 1.0]), seed=st.integers(0, 2**32))
def test_bytes_outside_the_span_do_not_change(model, drawn, level, seed, request):
    text, (start, end) = drawn
    if (start == end and level < 1) or (end - start == len(text) and level == 1):
        return  # rejected: see below
    g = request.getfixturevalue(model)
    limit = {"max_new_tokens": 3} if level == 1 else {}
    out = g.edit(text, (start, end), level=level, seed=seed, steps=1, canvas_length=12, **limit)
    assert out.text.encode() == text[:start].encode() + out.replacement.encode() + text[end:].encode()


def changed(g, level, seed):
    start, end = SPAN
    old = g.tokenizer.encode(TEXT[start:end], bos=False)
    new = g.edit(TEXT, SPAN, level=level, **{**BRIEF, "seed": seed}).tokens
    assert len(new) == len(old)
    return {i for i, (was, now) in enumerate(zip(old, new, strict=True)) if was != now}


def test_lower_level_changes_a_subset_of_the_tokens_of_a_higher_one(tiny):
    shares = []
    for level in (0.1, 0.4, 0.9):
        found = [len(changed(tiny, level, seed)) / (SPAN[1] - SPAN[0]) for seed in range(8)]
        shares.append(sum(found) / len(found))
        assert shares[-1] == pytest.approx(level, abs=0.15)  # random weights change all they may
    assert shares == sorted(shares)
    assert changed(tiny, 0.1, 3) <= changed(tiny, 0.9, 3)


def test_smallest_level_changes_one_token(tiny):
    assert len(changed(tiny, 1e-9, 4)) <= 1
    assert any(changed(tiny, 1e-9, seed) for seed in range(4))


@pytest.mark.parametrize("level", [0.5, 1.0])
def test_same_seed_same_edit(tiny, level):
    assert tiny.edit(TEXT, SPAN, level=level, **BRIEF) == tiny.edit(TEXT, SPAN, level=level, **BRIEF)


def test_level_one_is_an_infill(tiny):
    edited = tiny.edit(TEXT, SPAN, max_new_tokens=5, **BRIEF)
    filled = tiny.infill(TEXT[:10], TEXT[25:], max_new_tokens=5, **BRIEF)
    assert (edited.replacement, edited.tokens, edited.usage) == (filled.text, filled.tokens, filled.usage)


def test_empty_span_inserts_text_at_level_one(tiny):
    out = tiny.edit(TEXT, (10, 10), max_new_tokens=5, **BRIEF)
    assert out.text == TEXT[:10] + out.replacement + TEXT[10:]


def recording(g):
    """Return the model, and the list of the requests that it runs."""
    seen = []

    def submit(submit, request):
        seen.append(request)
        return submit(request)

    other = with_engine(g)
    other.driver = Driver(Watched(other.engine, submit=submit))
    return other, seen


@pytest.mark.parametrize("level", [0.5, 1.0])
def test_instruction_is_a_user_turn_with_the_present_text(tiny, level):
    g, seen = recording(tiny)
    g.edit(TEXT, SPAN, instruction="Make it a cat.", level=level, **BRIEF)
    turn = tiny.tokenizer.chat([{"role": "user", "content": f"Make it a cat.\n\n{TEXT}"}]).tokens
    for request in seen:
        assert list(request.prompt) == turn + tiny.tokenizer.encode(TEXT[:10], bos=False)


def test_whole_text_may_be_the_span_with_an_instruction(tiny):
    out = tiny.edit(TEXT, (0, len(TEXT)), instruction="Write it anew.", max_new_tokens=5, **BRIEF)
    assert out.text == out.replacement


def test_text_after_the_span_or_its_end_is_pinned(tiny, marked):
    for model, behind in ((tiny, tiny.tokenizer.encode(TEXT[25:], bos=False)), (marked, [1])):
        g, seen = recording(model)
        g.edit(TEXT, SPAN, level=0.5, steps=2, seed=1)
        [request] = seen
        assert [request.pins[15 + i] for i in range(len(behind))] == behind
        assert request.max_new_tokens == 15 + len(behind)


def test_span_longer_than_a_canvas_takes_several_canvases(tiny):
    text = "0123456789" * 6
    out = tiny.edit(text, (5, 55), level=0.2, **BRIEF)
    assert out.usage.canvases == 3
    assert (out.text[:5], out.text[-5:]) == (text[:5], text[-5:])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"span": (10, 99)}, r"outside the text, which has the characters 0:44"),
        ({"span": (-3, 5)}, "outside the text"),
        ({"span": (9, 3)}, "reversed"),
        ({"span": (3, 3), "level": 0.5}, "is empty"),
        ({"span": (0, 44)}, "the span is the whole text"),
        ({"span": 7}, r"span must be \(start, end\)"),
        ({"span": (1, 2.5)}, "end of the span"),
        ({"span": (True, 2)}, "start of the span"),
        ({"text": b"bytes"}, "must be text"),
        ({"level": 0}, "level must be"),
        ({"level": 1.5}, "level must be"),
        ({"level": float("nan")}, "level must be"),
        ({"level": "much"}, "level must be"),
        ({"level": 0.5, "max_new_tokens": 3}, "max_new_tokens requires level 1"),
        ({"level": 0.5, "stop": "x"}, "stop requires level 1"),
        ({"instruction": " "}, "instruction is empty"),
        ({"level": 0.5, "method": "prompt"}, "has no"),
        ({"level": 0.5, "pins": {}}, "pins is an option of generate only"),
        ({"text": "x" * 9000, "span": (8990, 8995), "level": 0.5}, "context=N"),
    ],
)
def test_invalid_edit_is_rejected_with_the_reason(tiny, arguments, words):
    with pytest.raises(gesso.InputError, match=words):
        tiny.edit(**{"text": TEXT, "span": SPAN, **BRIEF, **arguments})
    assert not tiny.engine.busy

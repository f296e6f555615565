"""A constraint begins after the thoughts of the model."""

import pytest

from gesso.constraints.automaton import DEAD, START
from gesso.constraints.term import Term
from gesso.constraints.terms import literal
from gesso.constraints.thinking import BEGIN, END, after_thinking

SMALL = {"canvas_length": 48, "steps": 3, "max_new_tokens": 48}
HELLO = [{"role": "user", "content": "Hello"}]
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
THOUGHT = bytes([BEGIN]) + b"thought\nhm {" + bytes([END])


def accepts(term: Term, text: bytes) -> bool:
    for byte in text:
        term = term.after(byte)
    return term.nullable


@pytest.mark.parametrize("text", [b"yes", THOUGHT + b"yes", THOUGHT + b"\n\nyes", THOUGHT.replace(b"hm", b"") + b"yes"])
def test_thoughts_may_come_before_the_constrained_text(text):
    assert accepts(after_thinking(literal("yes")), text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        THOUGHT,
        THOUGHT[:-1] + b"yes",  # not closed
        THOUGHT + b"no",
        THOUGHT + THOUGHT + b"yes",
        b"hm" + THOUGHT + b"yes",
        THOUGHT.replace(b"thought", b"final") + b"yes",  # another channel, whose text is shown
        bytes([BEGIN]) + THOUGHT + b"yes",
        b"yes" + THOUGHT,
        THOUGHT.replace(b"hm", b"\x80") + b"yes",  # no UTF-8: the bytes around it would be read in another way
    ],
)
def test_other_texts_are_not_possible(text):
    assert not accepts(after_thinking(literal("yes")), text)


@pytest.mark.parametrize("written", ["", "<|channel>thought\nhm<channel|>", "<|channel>thought\n"])
def test_an_answer_after_thoughts_keeps_to_its_constraint(tiny, written):
    """Pins decide how the answer begins."""
    pins = dict(enumerate(tiny.tokenizer.encode(written, bos=False)))
    for seed in range(3):
        found = tiny.chat(HELLO, thinking=True, choice=["yes", "no"], pins=pins, seed=seed, **SMALL)
        assert found.text in ("yes", "no")
        assert found.thinking.startswith("hm" if "hm" in written else "")
        assert tiny.decode(found.tokens, special=True).startswith(written)


def test_thinking_and_a_required_call_or_a_schema_can_be_combined(tiny):
    tools = [{"type": "function", "function": {"name": "f", "parameters": PERSON}}]
    guide = tiny.guides.calls(tools, "required", False, thinking=True)
    for text, right in (("{age:3}", True), ("{age:x}", False)):
        written = f"<|channel>thought\nhm<channel|><|tool_call>call:f{text}<tool_call|>"
        state = guide.walk(START, tiny.tokenizer.encode(written, bos=False))
        assert guide.may_end(state) == right
    assert isinstance(tiny.chat(HELLO, json_schema=PERSON, thinking=True, seed=1, **SMALL).text, str)


def test_thoughts_need_thinking(tiny):
    guide = tiny.guides.guide(choice=["yes"])
    assert guide.walk(START, tiny.tokenizer.encode("<|channel>", bos=False)) == DEAD

"""Tokens are cut where their text is cut, with few decodes, and streamed text is decoded incrementally."""

import random
from dataclasses import replace

import pytest

from gesso.chat.answer import parse
from gesso.chat.calls import ToolCall
from gesso.engine.engine import Engine
from gesso.engine.final_text import fewest_with, most_within
from gesso.serve.deltas import AnswerDeltas
from gesso.serve.wire import Ended
from tests.diffusion.test_settle import drafts, letters, request, run


class Counted:
    """A decoder that counts the tokens it is given."""

    def __init__(self, decode):
        self.decode, self.tokens = decode, 0

    def __call__(self, tokens):
        self.tokens += len(tokens)
        return self.decode(tokens)


def one_by_one_within(tokens, text, decode):
    end = len(tokens)
    while end and not text.startswith(decode(tokens[:end])):
        end -= 1
    return end


def one_by_one_with(tokens, text, decode):
    end = len(tokens)
    while end and decode(tokens[: end - 1]).startswith(text):
        end -= 1
    return end


def drawn(tokenizer, chance, ascii_bytes):
    """Return random tokens of all kinds: text, special tokens, multibyte characters, and invalid bytes."""
    whole = sorted(set(range(128)) - tokenizer.special_ids)
    byte = [tokenizer.id_of(f"<0x{value:02X}>") for value in range(256)]
    tokens = []
    for _ in range(chance.randint(1, 40)):
        kind = chance.choice(("text", "special", "character", "character", "broken", "ascii"))
        if kind == "text":
            tokens.append(chance.choice(whole))
        elif kind == "special":
            tokens.append(chance.choice(sorted(tokenizer.special_ids)))
        elif kind == "character":
            tokens += [byte[value] for value in chance.choice("éß€漢😀").encode()]
        elif kind == "broken" and chance.random() < 0.5:
            tokens.append(byte[chance.randrange(128, 256)])
        elif kind == "ascii" and ascii_bytes:
            tokens += [byte[value] for value in b"plain"]
    if chance.random() < 0.5:  # long runs of bytes
        tokens = [token for token in tokens if token in tokenizer.byte_ids or chance.random() < 0.2]
    return tokens


@pytest.mark.parametrize("ascii_bytes", [False, True])
def test_tokens_are_cut_where_dropping_them_one_by_one_would_cut_them(tiny, ascii_bytes):
    chance, byte_ids = random.Random(0), tiny.tokenizer.byte_ids
    for _ in range(300):
        tokens = drawn(tiny.tokenizer, chance, ascii_bytes)
        text = tiny.decode(tokens)
        length = chance.randint(0, len(text))
        shown = text[:length]
        assert fewest_with(tokens, text, length, byte_ids, tiny.decode) == one_by_one_with(tokens, shown, tiny.decode)
        if shown != text:
            end = most_within(tokens, text, length, byte_ids, tiny.decode)
            expected = one_by_one_within(tokens, shown, tiny.decode)
            # Plain characters in a run of bytes that is broken as a whole may be held back for longer.
            assert end <= expected if ascii_bytes and "\ufffd" in text else end == expected
            assert shown.startswith(tiny.decode(tokens[:end]))


def test_text_held_back_for_a_stop_string_costs_few_decodes(tiny):
    """Each step holds back hundreds of tokens, or drops them at the end, and decodes the text about twice."""
    count = 400
    same = dict.fromkeys(range(count), 140)
    wanted = request(max_new_tokens=count, pins=same, stop=(letters([140] * 1000 + [141]),))
    counted = Counted(letters)
    held = [draft for draft in drafts(run(Engine(tiny.model, counted), wanted)[0]) if len(draft.before) > 300]
    assert held
    for draft in held:
        counted.tokens = 0
        assert draft.final_tokens == ()
        assert counted.tokens < 4 * count

    different = {at: 130 + at % 250 for at in range(count)}
    text = letters(different.values())
    counted = Counted(letters)
    settings = replace(wanted.diffusion, canvas_length=256)
    ended = run(
        Engine(tiny.model, counted), replace(wanted, pins=different, stop=(text[20:], text[30:200]), diffusion=settings)
    )
    assert ended[0][-1].result.text == text[:30] and len(ended[0][-1].result.tokens) == 30
    assert counted.tokens < 4 * count


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_decoded_in_pieces_is_the_text_decoded_at_once(tiny, chat):
    chance, tokenizer = random.Random(1), tiny.tokenizer
    for _ in range(300):
        tokens, writing, at = drawn(tokenizer, chance, ascii_bytes=True), AnswerDeltas(tokenizer, chat), 0
        text, thinking = "", ""
        ended = Ended(id=0, text=tiny.decode(tokens), tokens=tokens, finish_reason="stop", seed=0, usage={})
        whole = writing.answer(ended)
        while at < len(tokens):
            count = chance.randint(1, 6)
            delta = writing.settle(tokens[at : at + count])
            at += count
            text += delta.text
            thinking += delta.thinking
            assert whole.text.startswith(text) and whole.thinking.startswith(thinking)
        last = writing.end(ended)
        assert (text + last.text, thinking + last.thinking) == (whole.text, whole.thinking)
        assert writing.final == whole


def test_all_text_of_whole_tokens_is_sent_as_it_settles(tiny):
    chance, tokenizer = random.Random(2), tiny.tokenizer
    whole = sorted(set(range(128)) - tokenizer.special_ids)
    for chat in (False, True):
        writing, sent, tokens = AnswerDeltas(tokenizer, chat), "", []
        for _ in range(200):
            tokens.append(chance.choice(whole))
            sent += writing.settle(tokens[-1:]).text
            assert sent == (parse(tiny.decode(tokens)).text if chat else tiny.decode(tokens))


def test_deltas_of_a_damaged_call_never_contain_its_syntax(tiny):
    raw = 'Sure. Icall:f{a:<|"|>x<|"|>}<tool_call|> Done'
    tokens = tiny.tokenizer.encode(raw, bos=False)
    for step in range(1, 8):
        writing = AnswerDeltas(tiny.tokenizer, chat=True, tools=("f",))
        deltas = [writing.settle(tokens[at : at + step]) for at in range(0, len(tokens), step)]
        deltas.append(
            writing.end(Ended(id=0, text=tiny.decode(tokens), tokens=tokens, finish_reason="stop", seed=0, usage={}))
        )
        assert "".join(delta.text for delta in deltas) == parse(raw, ("f",), ended=True).text
        assert [call for delta in deltas for call in delta.calls] == [ToolCall("f", {"a": "x"})]


def test_a_stream_decodes_each_token_a_few_times_only(tiny):
    decoded = []

    class Counted(AnswerDeltas):
        def decode(self, tokens, *, special=False):
            decoded.extend(tokens)
            return super().decode(tokens, special=special)

    writing, tokens = Counted(tiny.tokenizer, chat=True), sorted(set(range(128)) - tiny.tokenizer.special_ids) * 10
    text = "".join(writing.settle([token]).text for token in tokens)
    assert text == tiny.decode(tokens, special=True)
    assert len(decoded) < 10 * len(tokens)

"""Pins with a constraint: every text has both, or the request is rejected with the reason."""

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gesso
from gesso.constraints.automaton import START, Automaton
from gesso.constraints.constraint import Guides
from gesso.constraints.reach import Reach
from gesso.constraints.regex import regex_term
from gesso.constraints.search import BEAM
from gesso.constraints.words import Words
from gesso.diffusion.prediction import LIKELY
from tests.constraints.test_search import best_of, random_logits

SMALL = {"canvas_length": 12, "steps": 3}
REGEXES = [
    r'\{"name": "[^"\\]*", "age": [0-9]{1,3}\}',
    r"[a-z]+@[a-z]+\.(com|org)",
    r"(é|日本|🙂|a){4,9}",
    r"(?s).{3,30}",
    r"(yes|no|maybe)( (yes|no|maybe)){2,6}",
]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(regex=st.sampled_from(REGEXES), seed=st.integers(0, 99), data=st.data(), settle=st.booleans())
def test_random_weights_follow_pins_and_constraint(tiny, regex, seed, data, settle):
    """The pins are tokens of another text that matches the constraint, usually over several canvases."""
    other = tiny.generate("Hello", regex=regex, seed=seed, max_new_tokens=40, **SMALL).tokens
    places = data.draw(st.sets(st.integers(0, len(other) - 1), max_size=6)) if other else set()
    pins = {place: other[place] for place in places}
    options = {**SMALL, "settle": int(settle), "confidence": 9.0}
    result = tiny.generate("Hello", regex=regex, pins=pins, seed=seed + 100, max_new_tokens=40, **options)
    assert {place: result.tokens[place] for place in places} == pins
    assert tiny.guides.guide(regex=regex).automaton.matches(result.text.encode())
    assert result.finish_reason == "stop"


def test_pins_are_rejected_iff_no_text_has_them(guide_of):
    """Compare with all sequences of the tokens that can occur."""
    length, rng, rejected = 4, random.Random(0), 0
    for regex in ("ab?c?|de", "(ab|c){1,3}", "[ab]*", "x(y|z)?|yx"):
        guide = guide_of(regex)
        usable = sorted({*(guide.words.token_of[bytes([byte])] for byte in b"abcdexyz"), *guide.eos, 7})
        texts = []
        for tokens in itertools.product(usable, repeat=length):
            end = next((i for i, token in enumerate(tokens) if token in guide.eos), length)
            if guide.may_end(guide.walk(START, tokens[:end])):
                texts.append((tokens, end))
        for _ in range(40):
            pins = {place: rng.choice(usable) for place in rng.sample(range(length), rng.randint(1, 3))}
            # A text cannot end before its last pin.
            fit = [t for t, end in texts if end >= max(pins) and all(t[at] == pin for at, pin in pins.items())]
            try:
                Reach(guide, pins, length).check()
            except gesso.InputError:
                rejected += 1
                assert not fit, (regex, pins)
            else:
                assert fit, (regex, pins)
    assert 20 < rejected < 140


@pytest.mark.parametrize("regex", ["ab?c?|de", "(ab|c){1,3}", "[ab]*", "x(y|z)?|yx"])
def test_search_finds_most_likely_text_with_pins(guide_of, tiny, regex):
    guide, length = guide_of(regex), 3
    assert len(guide.automaton) <= BEAM
    usable = sorted({guide.words.token_of[bytes([byte])] for byte in b"abcdexyz"})
    fill = sorted(guide.eos | guide.padding)
    texts = [t for n in range(1, 4) for t in itertools.product(usable, repeat=n) if guide.may_end(guide.walk(START, t))]
    for seed, text in enumerate(random.Random(0).sample(texts, min(6, len(texts)))):
        logits_CV = random_logits(tiny.config.vocab_size, length, seed)
        place = seed % len(text)
        pins = {place: text[place]}

        def score(tokens, logits_CV=logits_CV, place=place):
            counted = [float(logits_CV[i, token]) for i, token in enumerate(tokens) if i != place]
            ends = [float(logits_CV[len(tokens), sorted(guide.eos)].max())] if len(tokens) < length else []
            return sum(counted + ends) + float(logits_CV[len(tokens) + 1 :, fill].max(axis=1).sum())

        best = best_of(guide, logits_CV, LIKELY, pins=pins)
        end = next((i for i, token in enumerate(best) if token in guide.eos), length)
        fit = [t for t in texts if len(t) > place and t[place] == pins[place]]
        assert score(tuple(best[:end])) == pytest.approx(max(map(score, fit)), abs=1e-4)


@pytest.mark.parametrize(
    ("regex", "pins", "message"),
    [
        ("abc", {1: b"x"}, "at position 1 is not possible"),
        ("abc", {0: b"a", 1: b"c"}, "at position 1 is not possible under the constraint and the pins before it"),
        ("abc", {5: b"c"}, "at position 5 is not possible"),
        ("[a-c]{9}", {1: b"b"}, "within max_new_tokens=8"),
        ("abc", {1: None}, "at position 1 is not possible"),
    ],
)
def test_impossible_pin_is_named(tiny, guide_of, regex, pins, message):
    token_of = guide_of(regex).words.token_of
    given = {place: 1 if word is None else token_of[word] for place, word in pins.items()}
    with pytest.raises(gesso.InputError, match=message):
        tiny.generate("Hello", regex=regex, pins=given, max_new_tokens=8, **SMALL)


def test_pinned_end_of_text_ends_text(tiny):
    result = tiny.generate("Hello", regex="[a-z]{2,20}", pins={5: 1}, max_new_tokens=20, seed=1, **SMALL)
    assert len(result.text) == 5 and result.finish_reason == "stop"


def test_constraint_too_large_for_pins_is_rejected(guide_of):
    with pytest.raises(gesso.InputError, match="too large to be combined"):
        Reach(guide_of("[a-z]{9,99}"), pins={50: 300}, length=99, max_work=1000)


def test_tables_for_pins_count_as_memory_of_constraints(tiny):
    guides = Guides(tiny.tokenizer, tiny.config.vocab_size, frozenset([1]))
    regexes = ["[a-z]{1,20}", "[b-z]{1,20}"]
    pair = [guides.guide(regex=regex) for regex in regexes]
    guides.cached_bytes = sum(guide.nbytes for guide in pair)
    assert guides.guide(regex=regexes[1]) is pair[1] and list(guides._cached.values()) == pair
    before, every = pair[1].nbytes, pair[1].every_move  # computed by the first request with pins
    assert pair[1].nbytes >= before + every.nbytes
    assert every.code_SM.itemsize == every.next_SM.itemsize == 4
    assert guides.guide(regex=regexes[1]) is pair[1] and list(guides._cached.values()) == [pair[1]]


def test_targets_has_one_word_per_reachable_state(tiny):
    words, automaton = Words.of(tiny.tokenizer, tiny.config.vocab_size), Automaton(regex_term(r'"[^"\\]{0,9}"|[0-9]+'))
    assert automaton.fill_all(100)
    for state in range(START, len(automaton)):
        reached = {automaton.walk(state, word) for word in words.token_of} - {0}
        found = words.targets(automaton, state)
        assert {target for _, target in found} == reached
        assert all(automaton.walk(state, words.bytes_of[token]) == target for token, target in found)


def test_token_is_preferred_to_byte_token_with_same_text():
    """A model has hardly seen byte tokens in training. With them, every digit of a number had the same score."""
    g = gesso.load()
    words = Words.of(g.tokenizer, g.config.vocab_size)
    for text in "0123456789qxz{}":
        assert [words.token_of[text.encode()]] == g.tokenizer.encode(text, bos=False)

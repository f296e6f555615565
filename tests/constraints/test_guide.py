"""Every text matches its constraint, whatever the model predicts."""

import itertools
import json
import re
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gesso
from examples.samplers.rules import Argmax
from gesso.constraints.automaton import DEAD, END, START, Automaton
from gesso.constraints.constraint import Guides
from gesso.constraints.guide import Guide
from gesso.constraints.limits import Limits
from gesso.constraints.regex import regex_term
from gesso.constraints.words import Words
from tests.constraints.test_schema import valid
from tests.schemas import schemas

SMALL = {"canvas_length": 24, "steps": 3}


# --- the automaton and the words ---


@pytest.mark.parametrize(
    ("regex", "right", "wrong"),
    [
        ("abc", ["abc"], ["", "ab", "abcd", "abd"]),
        ("é{2}|日本", ["éé", "日本"], ["é", "日", "本日"]),
        (r"\d{3}-[a-f]+", ["123-abc", "000-f"], ["123-", "12-a", "123-g"]),
        (r"(?s).*", ["", "a\nb", "\U0001f600"], []),
        (r".*", ["", "ab"], ["a\nb"]),
        (r"\p{Greek}+", ["αβγ"], ["abc", ""]),
        ("(ab)*", ["", "ab", "abab"], ["a", "aba"]),
        ("a(bc)?", ["a", "abc"], ["ab"]),
        ("(?x) a b # two letters", ["ab"], ["a b"]),
    ],
)
def test_automaton_accepts_texts_that_match_as_a_whole(regex, right, wrong):
    automaton = Automaton(regex_term(regex))
    assert all(automaton.matches(text.encode()) for text in right)
    assert not any(automaton.matches(text.encode()) for text in wrong)


def test_text_is_concatenation_of_its_words(tiny, words):
    generator = np.random.default_rng(0)
    known = sorted(words.bytes_of)
    for _ in range(200):
        tokens = generator.choice(known, size=12).tolist()
        raw = b"".join(words.bytes_of[token] for token in tokens)
        assert tiny.decode(tokens) == raw.decode("utf-8", "replace") or b"\xef\xbf\xbd" in raw or not _is_text(raw)
    assert not words.bytes_of.keys() & tiny.tokenizer.special_ids


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("regex", ["abc|abd|x", r"[a-z]{2}", r'"[^"]{0,9}"'])
def test_words_after_a_state_are_those_the_automaton_accepts(words, regex):
    automaton = Automaton(regex_term(regex))
    found = dict(words.after(automaton, START, 10**6))
    for token in words.token_of.values():
        state = START
        for byte in words.bytes_of[token]:
            state = automaton.next(state, byte)
        assert found.get(token, DEAD) == state


@pytest.mark.parametrize("regex", ["abc", r'\{"name": "[a-z]{3,}"\}', r"(yes|no){4}", "(?s).*", "日本語"])
def test_shortest_path_has_tokens_left_tokens(guide_of, regex):
    guide, state, left, tokens = guide_of(regex), START, [], []
    while not guide.may_end(state):
        left.append(guide.tokens_left(state))
        tokens.append(int(guide._token_S[state]))
        state = guide.walk(state, tokens[-1:])
    assert left == list(range(len(left), 0, -1)) and guide.shortest == len(tokens)
    assert guide.automaton.matches(b"".join(guide.words.bytes_of[token] for token in tokens))


# --- in the engine, with random weights ---

REGEXES = [
    "yes|no",
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"[a-z]+@[a-z]+\.(com|org)",
    r"\p{Greek}{3,5}",
    "🙂{2}ü",
    r"#[0-9a-f]{6}",
    r'"([^"\\\x00-\x1f]|\\["\\nt])*"',
    r"(?s).{1,30}",
    r"a{30}",
    r"",
]


@pytest.mark.parametrize("regex", REGEXES)
def test_random_weights_match_regex(tiny, regex):
    for seed in range(2):
        result = tiny.generate("Hello", regex=regex, seed=seed, max_new_tokens=40, **SMALL)
        assert Automaton(regex_term(regex)).matches(result.text.encode())
        assert result.finish_reason == "stop"


def test_constraint_continues_across_canvases(tiny):
    result = tiny.generate("Hello", regex="(abc ){40}end", seed=1, max_new_tokens=200, **SMALL)
    assert result.text == "abc " * 40 + "end"
    assert result.usage.canvases > 2


@pytest.mark.parametrize("write", ["canvas", "tokens"])
def test_canvases_and_tokens_follow_a_constraint(tiny, write):
    options = {} if write == "tokens" else SMALL
    result = tiny.generate("Hello", regex="[a-c]{5,20}", seed=1, max_new_tokens=24, write=write, **options)
    assert re.fullmatch("[a-c]{5,20}", result.text)


def test_choice_is_one_of_the_texts_exactly(tiny):
    texts = ["a+b", "(x)|[y]", "naïve – ünïcödé", "{}\\n", "a-b~c&d#"]
    for seed in range(4):
        assert tiny.generate("Hello", choice=texts, seed=seed, **SMALL).text in texts
    for text in texts:
        assert tiny.generate("Hello", choice=[text], seed=0, **SMALL).text == text


class Tokens(Guide):
    """A guide under which one sequence of tokens is valid, or with None every one: random weights write none."""

    only: list[int] | None = None

    def walk(self, state, tokens):
        if self.only is None or not tokens:
            return state
        return END if list(tokens) == self.only else DEAD


def valid_tokens(tiny, only):
    guide = Tokens(Automaton(regex_term("(?s).*")), tiny.guides.words, tiny.guides.eos)
    guide.only = only
    return guide


def uncorrected(drafts):
    return not any(prediction.corrected for draft in drafts for prediction in draft.canvas.history)


def test_matching_text_is_not_changed(tiny):
    options = {"seed": 3, "max_new_tokens": 48, **SMALL}
    events = list(tiny.stream("Hello", guide=valid_tokens(tiny, None), **options))
    assert events[-1].result.tokens == tiny.generate("Hello", **options).tokens
    assert uncorrected(event for event in events if event.kind == "draft")


def named_in_the_prompt(tiny, **options):
    """Return the events of a request as for a chat whose prompt names the constraint."""
    return list(tiny.events(replace(tiny.request("Hello", **options), free_first=True)))


def test_constraint_that_final_text_matches_changes_nothing(tiny):
    """Only the final text is valid, and none of the drafts before it."""
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 8}
    options["stopping"] = lambda history, judged_C: len(history) == 4
    free = list(tiny.stream("Hello", **options))
    drafts = [event.canvas.result_C.tolist() for event in free if event.kind == "draft"]
    assert len(drafts) == 4 and drafts[-1] not in drafts[:-1]
    constrained = named_in_the_prompt(tiny, guide=valid_tokens(tiny, drafts[-1]), **options)
    assert constrained[-1].result.tokens == free[-1].result.tokens
    assert constrained[-1].result.usage.denoising_steps == free[-1].result.usage.denoising_steps
    assert uncorrected(event for event in constrained if event.kind == "draft")


def test_second_half_of_steps_follows_constraint(tiny):
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 6, "stopping": "fixed"}
    events = named_in_the_prompt(tiny, regex="[a-z]{4,9}", **options)
    drafts = [event.canvas for event in events if event.kind == "draft"]
    corrected = [prediction.corrected for prediction in drafts[-1].history]
    assert corrected == [False] * 3 + [True] * 3
    alone = [event.canvas for event in tiny.stream("Hello", **options) if event.kind == "draft"]
    for mine, free in zip(drafts[:3], alone[:3], strict=True):
        assert mine.tokens_C.tolist() == free.tokens_C.tolist()


def test_every_step_follows_a_constraint_that_the_prompt_does_not_name(tiny):
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 6, "stopping": "fixed"}
    drafts = [event for event in tiny.stream("Hello", regex="[a-z]{4,9}", **options) if event.kind == "draft"]
    assert all(prediction.corrected for prediction in drafts[-1].canvas.history)


def test_finished_text_that_does_not_match_is_corrected_from_that_step(tiny):
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 8}
    options["stopping"] = lambda history, judged_C: len(history) == 2 and not history[-1].corrected
    events = named_in_the_prompt(tiny, regex="[a-z]{4,9}", **options)
    canvases = [event.canvas for event in events if event.kind == "draft"]
    assert [prediction.corrected for prediction in canvases[-1].history] == [False] + [True] * 7
    assert re.fullmatch("[a-z]{4,9}", tiny.generate("Hello", regex="[a-z]{4,9}", **options).text)


def test_same_seed_same_constrained_text_in_any_batch(tiny):
    asked = [{"regex": "[a-z]{4,9}"}, {"choice": ["left", "right"]}, {}, {"regex": "[0-9]+"}]
    alone = [tiny.generate("Hello", seed=7, max_new_tokens=20, **one, **SMALL).tokens for one in asked]
    streams = [tiny.stream("Hello", seed=7, max_new_tokens=20, **one, **SMALL) for one in asked]
    together: list = [None] * len(asked)
    for events in itertools.zip_longest(*streams):
        for i, event in enumerate(events):
            if event is not None and event.kind == "done":
                together[i] = event.result.tokens
    assert together == alone


def test_resumed_draft_follows_its_constraint(tiny):
    options = {"regex": "[a-z]{4,9}", "seed": 3, "max_new_tokens": 20, "canvas_length": 20, "steps": 4}
    drafts = [event for event in tiny.stream("Hello", **options) if event.kind == "draft"]
    resumed = tiny.generate("Hello", resume=drafts[1], **options)
    assert resumed.text == tiny.generate("Hello", **options).text
    with pytest.raises(gesso.InputError, match="constraint of the draft differs"):
        tiny.generate("Hello", resume=drafts[1], **options | {"regex": "[a-z]{4,8}"})


# --- rejected constraints ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "(a"}, "not closed"),
        ({"regex": "a)(b"}, "closes no group"),
        ({"regex": "a(?=b)"}, "no text can satisfy"),
        ({"regex": r"(a)\1"}, "back-reference"),
        ({"regex": 5}, "must be text"),
        ({"regex": "\ud800"}, "no text can satisfy"),
        ({"regex": "a{100}", "max_new_tokens": 4}, "shortest answer needs 100 tokens"),
        ({"regex": "a" * 600_000}, "longer than"),
        ({"choice": []}, "at least one"),
        ({"choice": ["a", ""]}, "none may be empty"),
        ({"choice": "abc"}, "list of texts"),
        ({"regex": "a", "choice": ["a"]}, "one constraint"),
    ],
)
def test_unsupported_constraint_is_rejected_with_reason(tiny, options, message):
    with pytest.raises(gesso.InputError, match=message):
        tiny.generate("Hello", **options)


def test_constraint_beyond_the_vocabulary_is_rejected():
    words = Words({5: b"ab", 6: b"c"}, 8)
    assert Guide(Automaton(regex_term("abc")), words, frozenset([1])).shortest == 2
    with pytest.raises(gesso.InputError, match="no token of this model writes"):
        Guide(Automaton(regex_term("abd")), words, frozenset([1]))


@pytest.mark.parametrize("regex", [r"(a|b)*a(a|b){16}", r"[ab]{0,65535}"])
def test_regex_with_a_huge_automaton_has_few_states_on_the_way(regex):
    automaton = Automaton(regex_term(regex))
    assert automaton.matches(b"a" * 300)
    assert len(automaton) < 1000


def test_constraint_that_reaches_too_many_states_is_rejected():
    automaton = Automaton(regex_term("[a-z]{0,500}"), Limits(states=100))
    with pytest.raises(gesso.InputError, match=r"limits\.states"):
        automaton.walk(START, b"a" * 300)


def test_constraint_whose_states_take_too_long_is_rejected():
    automaton = Automaton(regex_term("[a-z]{0,500}"), Limits(seconds=0, state_seconds=0))
    with pytest.raises(gesso.InputError, match=r"limits\.state_seconds"):
        automaton.walk(START, b"a" * 300)


def test_memory_of_compiled_constraints_is_bounded(tiny):
    guides = Guides(tiny.tokenizer, tiny.config.vocab_size, frozenset([1]), cached_bytes=100_000)
    for regex in ("a{20}", "b{20}", "c{20}", "d{90}"):
        kept = guides.guide(regex=regex)
    assert list(guides._cached.values()) == [kept]
    again = guides.guide(regex="a{9}")
    assert list(guides._cached.values()) == [again] and guides.guide(regex="a{9}") is again
    known = again._cached_step
    for token in range(tiny.config.vocab_size):
        again.walk(START, [token])
    assert known.cache_info().maxsize < 10**6


def test_prefix_is_not_confused_with_regex(tiny):
    for text in ("plain", "marked", "beginning"):
        tiny.guides.guide(regex="")
        assert not tiny.guides.within(text, "").may_end(START)


def test_constraint_is_compiled_once(tiny):
    first = tiny.guides.guide(regex="[a-f]{3}x")
    assert tiny.guides.guide(regex="[a-f]{3}x") is first


# --- random JSON schemas, with random weights ---


@hypothesis.seed(0)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_random_weights_are_valid_under_any_schema(tiny, schema, seed):
    """Each text may have forty tokens more than it needs."""
    length = tiny.guides.guide(json_schema=schema).shortest + 40
    result = tiny.generate(
        "Hello", json_schema=schema, seed=seed, max_new_tokens=length, canvas_length=48, steps=1, sampler=Argmax()
    )
    assert result.finish_reason == "stop"
    assert valid(json.loads(result.text), schema), result.text


# --- the command line ---


def test_command_line_constraints(main, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "list.ebnf"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    grammar.write_text('root ::= item ("," item){0,3}\nitem ::= [a-c]{2}\n')
    quick = ("--seed", "1", "--steps", "2", "--max-new-tokens", "40", "--canvas-length", "40")
    assert isinstance(json.loads(main("generate", "x", "--json-schema", str(schema), *quick).out)["n"], int)
    assert re.fullmatch(r"[a-c]{2}(,[a-c]{2}){0,3}\n", main("generate", "x", "--grammar", str(grammar), *quick).out)
    assert main("generate", "x", "--choice", "yes", "--choice", "no", *quick).out in ("yes\n", "no\n")
    assert main("generate", "x", "--regex", "[0-9]{3}", *quick).out.strip().isdigit()
    for wrong in ("--json-schema", "--grammar"):
        failed = main("generate", "x", wrong, str(tmp_path / "none"))
        assert failed.code == 2 and "cannot be read" in failed.err
    schema.write_text("{")
    assert "is not JSON" in main("generate", "x", "--json-schema", str(schema)).err

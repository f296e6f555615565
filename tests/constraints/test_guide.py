"""Every text matches its constraint, whatever the model predicts, and the search finds the most likely one."""

import itertools
import json
import re
from collections.abc import Generator

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gesso
from gesso.constraints.automaton import DEAD, START, Automaton
from gesso.constraints.budget import complete, pausing
from gesso.constraints.constraint import Guides
from gesso.constraints.guide import Guide
from gesso.constraints.limits import Limits
from gesso.constraints.reach import Reach
from gesso.constraints.regex import regex_term
from gesso.constraints.search import BEAM, Scores, likeliest, search
from gesso.constraints.words import Words
from gesso.diffusion.prediction import LIKELY
from gesso.engine import guided
from tests.constraints.test_schema import valid
from tests.schemas import schemas

SMALL = {"canvas_length": 24, "steps": 3}


@pytest.fixture(scope="module")
def words(tiny):
    return Words.of(tiny.tokenizer, tiny.config.vocab_size)


@pytest.fixture(scope="module")
def guide_of(words, tiny):
    return lambda regex: Guide(
        Automaton(regex_term(regex)), words, frozenset(tiny.defaults.eos_token_ids), frozenset([0])
    )


def best_of(*arguments, **options) -> list:
    """Return the tokens that the search of `search_of` finds."""
    return complete(search_of(*arguments, **options))[0].tolist()


def search_of(
    guide: Guide, logits_CV: np.ndarray, top: int, after: int = 0, pins: dict[int, int] | None = None
) -> Generator:
    """Return the search for the tokens of a canvas, if `after` more tokens may follow it."""
    order_CK = np.argsort(-logits_CV, axis=1)[:, :top]
    top_CK = np.take_along_axis(logits_CV, order_CK, axis=1)
    fill = np.array(sorted(guide.eos | guide.padding))
    fill_C = fill[logits_CV[:, fill].argmax(axis=1)]
    reach = Reach(guide, pins or {}, len(logits_CV) + after)
    scores = Scores(order_CK, top_CK, fill_C, logits_CV[:, fill].max(axis=1), lambda tokens: logits_CV[:, tokens])
    return search(reach, START, 0, scores)


def random_logits(vocab_size: int, length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(length, vocab_size)).astype(np.float32)


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


# --- the search ---


@pytest.mark.parametrize("regex", ["ab?c?|de", "(ab|c){1,3}", "[ab]*", "x(y|z)?|yx"])
def test_search_finds_most_likely_matching_text(guide_of, tiny, regex):
    """Compare with all sequences of the tokens that can occur. The automaton has few states, so the beam is exact."""
    guide = guide_of(regex)
    assert guide.automaton.fill_all(BEAM)
    usable = sorted(
        {t for s in range(START, len(guide.automaton)) for t, _ in guide.words.after(guide.automaton, s, 999)}
    )
    ends = sorted(guide.eos)
    for seed in range(5):
        logits_CV = random_logits(tiny.config.vocab_size, 3, seed)
        best = best_of(guide, logits_CV, tiny.config.vocab_size)
        fill_C = logits_CV[:, sorted(guide.eos | guide.padding)].max(axis=1)
        highest = -np.inf
        for length in range(4):
            for tokens in itertools.product(usable, repeat=length):
                if guide.may_end(guide.walk(START, tokens)):
                    score = sum(logits_CV[i, t] for i, t in enumerate(tokens))
                    if length < 3:
                        score += max(logits_CV[length, e] for e in ends) + fill_C[length + 1 :].sum()
                    highest = max(highest, float(score))
        assert guide.may_end(guide.walk(START, best))
        assert sum(float(logits_CV[i, t]) for i, t in enumerate(best)) == pytest.approx(highest, abs=1e-4)


@pytest.mark.parametrize("regex", [r'\{"a":"[^"\\]*","b":[0-9]+\}', r"(é|日|a){9}", r"[^\n]{9,30}\n", "(?s).{3,}"])
def test_search_result_matches_at_any_length(guide_of, tiny, regex):
    guide = guide_of(regex)
    for length, seed in itertools.product((guide.shortest, guide.shortest + 1, 40), range(3)):
        logits_CV = random_logits(tiny.config.vocab_size, length, seed)
        for after in (0, 5):
            best = best_of(guide, logits_CV, LIKELY, after)
            assert Reach(guide, {}, length + after).fits(0, START, best)


def test_search_that_pauses_after_every_state_finds_the_same_text(guide_of, tiny):
    regex, logits_CV = "[a-z]{2,9}(, [a-z]+|; [0-9]{1,3})*", random_logits(tiny.config.vocab_size, 12, seed=1)
    guide = guide_of(regex)
    expected, parts = best_of(guide_of(regex), logits_CV, LIKELY), []
    for _ in range(2):
        pausable, count = search_of(guide, logits_CV, LIKELY), 0
        with pausing(lambda: True), pytest.raises(StopIteration) as end:
            while True:
                next(pausable)
                count += 1
        assert end.value.value[0].tolist() == expected
        parts.append(count)
    assert parts[0] > parts[1]  # the second search makes no states


def test_confident_position_outweighs_uncertain_positions(guide_of, tiny):
    """The first position predicts "y". All others are noise, under which the shorter text is more likely."""
    guide = guide_of("n|y" + "o" * 12)
    logits_CV = torch.from_numpy(random_logits(tiny.config.vocab_size, 16, seed=0)) * 2
    logits_CV[:, guide.words.token_of[b"o"]] -= 2
    logits_CV[0] = -20
    logits_CV[0, guide.words.token_of[b"y"]] = 0
    logits_CV[0, guide.words.token_of[b"n"]] = -6
    entropy_C = torch.distributions.Categorical(logits=logits_CV).entropy()
    for weighed, first in ((entropy_C, b"y"), (torch.zeros(16), b"n")):
        scores = guided.scores_of(guided.Candidates.of(logits_CV), weighed.numpy(), guide)
        best, _ = likeliest(Reach(guide, {}, 16), START, 0, scores)
        assert guide.words.bytes_of[int(best[0])] == first


def test_longer_text_wins_if_end_of_text_is_unlikely(guide_of, tiny):
    """The text may end after one token. The long text is unlikely, but an early end is even less likely."""
    guide = guide_of("n|yoooooooo")
    logits_CV = np.zeros((12, tiny.config.vocab_size), np.float32)
    logits_CV[:, guide.words.token_of[b"o"]] = -1
    logits_CV[2:9, [0, *guide.eos]] = -5
    best = best_of(guide, logits_CV + random_logits(tiny.config.vocab_size, 12, seed=1) / 100, LIKELY)
    assert guide.words.bytes_of[best[0]] == b"y"


def test_long_tokens_are_valid_but_no_candidates():
    words = Words({2: b" " * 24, **{3 + byte: bytes([byte]) for byte in range(128)}}, 140)
    guide = Guide(Automaton(regex_term("(?s).*")), words, frozenset([1]))
    assert guide.may_end(guide.walk(START, [2, 2, 40]))
    assert 2 not in {token for token, _ in words.after(guide.automaton, START, 999)}


@pytest.mark.parametrize("regex", [r"[a-z]{3,40}", r"[a-z0-9 ]*"])
def test_search_with_most_likely_tokens_without_text(guide_of, tiny, regex):
    """If a vocabulary is larger than the tokenizer, most of the additional ids have no text."""
    guide = guide_of(regex)
    silent = [token for token in range(tiny.config.vocab_size) if guide.words.length_V[token] == 0][:LIKELY]
    assert len(silent) == LIKELY
    logits_CV = random_logits(tiny.config.vocab_size, 6, seed=0)
    logits_CV[:, silent] += 100
    best = best_of(guide, logits_CV, LIKELY)
    assert Reach(guide, {}, 6).fits(0, START, best)


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


@pytest.mark.parametrize("sampler", [name for name in gesso.settings.SAMPLERS if name != "verified"])
def test_every_sampler_follows_constraint(tiny, sampler):
    options = {} if sampler == "autoregressive" else SMALL
    result = tiny.generate("Hello", regex="[a-c]{5,20}", seed=1, max_new_tokens=24, sampler=sampler, **options)
    assert re.fullmatch("[a-c]{5,20}", result.text)


def test_choice_is_one_of_the_texts_exactly(tiny):
    texts = ["a+b", "(x)|[y]", "naïve – ünïcödé", "{}\\n", "a-b~c&d#"]
    for seed in range(4):
        assert tiny.generate("Hello", choice=texts, seed=seed, **SMALL).text in texts
    for text in texts:
        assert tiny.generate("Hello", choice=[text], seed=0, **SMALL).text == text


def test_matching_text_is_not_changed(tiny, monkeypatch):
    """Random weights write no valid text, so this test declares every text valid."""
    monkeypatch.setattr(Reach, "fits", lambda *_: True)
    monkeypatch.setattr(guided, "search", lambda *_: pytest.fail("corrected a matching text"))
    options = {"seed": 3, "max_new_tokens": 48, **SMALL}
    assert tiny.generate("Hello", regex="(?s).*", **options).tokens == tiny.generate("Hello", **options).tokens


def test_constraint_that_final_text_matches_changes_nothing(tiny, monkeypatch):
    """This test declares only the final text valid, and none of the drafts before it."""
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 8}
    options["stopping"] = lambda history, judged_C: len(history) == 4
    free = tiny.generate("Hello", **options)
    drafts = [event.canvas.result_C.tolist() for event in tiny.stream("Hello", **options) if event.kind == "draft"]
    assert len(drafts) == 4 and drafts[-1] not in drafts[:-1]
    monkeypatch.setattr(Reach, "fits", lambda self, position, state, tokens: tokens in ([], (), drafts[-1]))
    monkeypatch.setattr(guided, "search", lambda *_: pytest.fail("corrected a matching text"))
    held = tiny.generate("Hello", regex="(?s).*", **options)
    assert (held.tokens, held.usage.denoising_steps) == (free.tokens, free.usage.denoising_steps)


def test_second_half_of_steps_follows_constraint(tiny):
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 6, "stopping": "fixed"}
    drafts = [event.canvas for event in tiny.stream("Hello", regex="[a-z]{4,9}", **options) if event.kind == "draft"]
    corrected = [prediction.corrected for prediction in drafts[-1].history]
    assert corrected == [False] * 3 + [True] * 3
    alone = [event.canvas for event in tiny.stream("Hello", **options) if event.kind == "draft"]
    for mine, free in zip(drafts[:3], alone[:3], strict=True):
        assert mine.tokens_C.tolist() == free.tokens_C.tolist()


def test_finished_text_that_does_not_match_is_corrected_from_that_step(tiny):
    options = {"seed": 3, "max_new_tokens": 16, "canvas_length": 16, "steps": 8}
    options["stopping"] = lambda history, judged_C: len(history) == 2 and not history[-1].corrected
    canvases = [e.canvas for e in tiny.stream("Hello", regex="[a-z]{4,9}", **options) if e.kind == "draft"]
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
    with pytest.raises(gesso.InputError, match="no token of this vocabulary writes"):
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


def test_memory_of_compiled_constraints_is_bounded(tiny, monkeypatch):
    guides = Guides(tiny.tokenizer, tiny.config.vocab_size, frozenset([1]))
    monkeypatch.setattr("gesso.constraints.constraint.KEPT_BYTES", 100_000)
    for regex in ("a{20}", "b{20}", "c{20}", "d{90}"):
        kept = guides.guide(regex=regex)
    assert list(guides._kept.values()) == [kept]
    again = guides.guide(regex="a{9}")
    assert list(guides._kept.values()) == [again] and guides.guide(regex="a{9}") is again
    known = again._cached_step
    for token in range(tiny.config.vocab_size):
        again.walk(START, [token])
    assert known.cache_info().maxsize < 10**6


def test_prefix_is_not_confused_with_regex(tiny):
    for text in ("plain", "marked", "beginning"):
        tiny.guides.guide(regex="")
        assert not tiny.guides.within(text, "").may_end(START)


def test_constraint_is_compiled_once(tiny, monkeypatch):
    first = tiny.guides.guide(regex="[a-f]{3}x")
    monkeypatch.setattr("gesso.constraints.constraint.regex_term", lambda *_: pytest.fail("compiled again"))
    assert tiny.guides.guide(regex="[a-f]{3}x") is first


# --- random JSON schemas, with random weights ---


@pytest.mark.parametrize("part", range(6))
def test_random_weights_are_valid_under_any_schema(tiny, part):
    """Three hundred schemas in six parts, each with forty tokens more than it needs."""

    @hypothesis.seed(part)
    @settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(schemas(), st.integers(0, 2**32))
    def check(schema, number):
        guide = tiny.guides.guide(json_schema=schema)
        length = guide.shortest + 40
        result = tiny.generate(
            "Hello", json_schema=schema, seed=number, max_new_tokens=length, canvas_length=48, steps=1, sampler="argmax"
        )
        assert result.finish_reason == "stop"
        assert valid(json.loads(result.text), schema), result.text

    check()


# --- tool calls ---

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book_table",
            "parameters": {
                "type": "object",
                "properties": {
                    "day": {"type": "string", "format": "date"},
                    "guests": {"type": "integer", "minimum": 1, "maximum": 20},
                    "name": {"type": "string"},
                    "tags": {"type": "array", "items": {"enum": ["a<|b", "quiet", "grün"]}, "maxItems": 2},
                    "note": {"type": "string", "pattern": "^[a-z<|>]{1,6}$"},
                },
                "required": ["day", "guests", "name"],
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "description": "Say hello."}},
]
ASK = [{"role": "user", "content": "A table for four."}]


@pytest.mark.parametrize("choice", ["required", "book_table", {"type": "function", "function": {"name": "ping"}}])
def test_required_tool_call_has_valid_arguments(tiny, choice):
    for seed in range(6):
        result = tiny.chat(
            ASK, tools=TOOLS, tool_choice=choice, seed=seed, max_new_tokens=120, canvas_length=60, steps=2
        )
        assert not result.malformed_calls and not result.text and result.finish_reason == "stop"
        (call,) = result.tool_calls
        if choice != "required":
            assert call.name == (choice if isinstance(choice, str) else "ping")
        if call.name == "book_table":
            assert valid(call.arguments, TOOLS[0]["function"]["parameters"])
        else:
            assert call.arguments == {}


def test_parallel_tool_calls_are_bounded(tiny):
    counts = set()
    for seed in range(8):
        options = {"seed": seed, "max_new_tokens": 120, "canvas_length": 60, "steps": 2, "parallel_tool_calls": True}
        result = tiny.chat(ASK, tools=TOOLS, tool_choice="ping", **options)
        assert all(call.name == "ping" for call in result.tool_calls) and not result.malformed_calls
        counts.add(len(result.tool_calls))
    assert min(counts) >= 1 and max(counts) <= 8


def test_answer_is_unconstrained_without_calls(tiny):
    options = {"seed": 1, "max_new_tokens": 24, **SMALL}
    assert tiny.chat_request(ASK, tools=TOOLS, tool_choice="none", **options).guide is None
    assert tiny.chat(ASK, tools=TOOLS, tool_choice="none", **options).tokens == tiny.chat(ASK, **options).tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "fly"}, "the tools are: 'book_table', 'ping'"),
        ({"tool_choice": {"name": "ping"}}, "tool_choice must be one of"),
        ({"tool_choice": "required", "regex": "a"}, "one constraint"),
    ],
)
def test_invalid_tool_choice_is_rejected(tiny, options, message):
    with pytest.raises(gesso.InputError, match=message):
        tiny.chat(ASK, tools=TOOLS, **options)
    with pytest.raises(gesso.InputError, match="there are no tools"):
        tiny.chat(ASK, tool_choice="required")


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

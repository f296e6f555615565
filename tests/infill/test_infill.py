"""Infill: the given text stays unchanged, the new text fits between, and the likeliest length wins."""

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gesso
from gesso.chat.tokenizer import Tokenizer
from gesso.engine.driver import Driver
from gesso.engine.request import Score
from gesso.eval.python_infill import prompt as fill_prompt
from gesso.eval.python_infill import source_files
from gesso.infill.boundary import nearest_end, nearest_start
from gesso.infill.infill import closer_lengths, first_lengths, infill_holes
from tests.engine.models import with_engine
from tests.tiny import tokenizer_json
from tests.watched import Watched

BRIEF = {"steps": 2, "canvas_length": 24, "seed": 1}
DRAWN = settings(derandomize=True, deadline=None, max_examples=40)


def watched(g, **around):
    """Return the model with these functions around operations of its engine."""
    other = with_engine(g)
    other.engine = Watched(other.engine, **around)
    other.driver = Driver(other.engine)
    return other


def changing(g, change):
    """Return the model so that it runs changed requests; scores stay unchanged."""
    return watched(g, submit=lambda submit, one: submit(one if isinstance(one, Score) else change(one)))


class Asked:
    """The requests that a model runs, and their results."""

    def __init__(self):
        self.running = {}
        self.done = []

    def submit(self, submit, request):
        id = submit(request)
        self.running[id] = request
        return id

    def step(self, step):
        events = step()
        self.done += [(self.running[event.request_id], event.result) for event in events if event.kind == "done"]
        return events

    def watching(self, g):
        return watched(g, submit=self.submit, step=self.step)


# --- given text stays unchanged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_prefix_and_suffix_stay_unchanged_in_forty_files(marked, method):
    library = Path(random.__file__).parent
    sources = (path.read_text(encoding="utf-8", errors="replace") for path in source_files((library,)).values())
    texts = list(itertools.islice((text for text in sources if len(text) > 100), 40))
    assert len(texts) == 40
    options = {"method": method, "context": 12, "steps": 1, "canvas_length": 12, "seed": 5}
    options |= {"lengths": [2]} if method == "pinned" else {"max_new_tokens": 3}
    for number, text in enumerate(texts):
        rng = random.Random(number)
        start, end = sorted(rng.sample(range(len(text)), 2))
        filled = marked.infill_holes([text[:start], text[end:]], **options)
        [middle] = filled.middles
        assert filled.text.encode() == text[:start].encode() + middle.text.encode() + text[end:].encode()
        assert middle.method == method


def test_suffix_is_pinned_after_the_hole_in_every_canvas(tiny):
    asked = Asked()
    asked.watching(tiny).infill("def f(x):\n    return ", "\n\nprint(f(2))\n", max_new_tokens=6, **BRIEF)
    suffix = tiny.tokenizer.encode("\n\nprint(f(2))\n", bos=False)
    assert len({len(result.tokens) for _, result in asked.done}) > 3
    for request, result in asked.done:
        hole = len(result.tokens) - len(suffix)
        assert result.tokens[hole:] == tuple(suffix)
        assert set(request.pins) == set(range(hole, len(result.tokens)))


def test_prompt_with_markers_equals_the_training_prompt(marked):
    asked = Asked()
    out = asked.watching(marked).infill("def f(x):\n", "\nprint(f(2))\n", max_new_tokens=4, **BRIEF)
    wanted = marked.tokenizer.encode(fill_prompt("def f(x):\n", "\nprint(f(2))\n"))
    assert [request.prompt for request, _ in asked.done] == [tuple(wanted)]
    assert (out.method, out.candidates) == ("prompt", ())


def test_holes_are_filled_from_left_to_right_with_earlier_holes_visible():
    seen = []

    def infill(prefix, suffix, **options):
        seen.append((prefix, suffix, options.get("seed")))
        return gesso.InfillResult(f"<{len(seen)}>", (), "stop", gesso.Usage(), 7)

    filled = infill_holes(infill, ["a", "b", "c"])
    assert seen == [("a", "b", None), ("a<1>b", "c", 7)]  # the second hole has the seed of the first
    assert filled.text == "a<1>b<2>c"
    assert [middle.text for middle in filled.middles] == ["<1>", "<2>"]


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_same_seed_same_middle_beside_other_requests(marked, method):
    ask = {"method": method, "max_new_tokens": 6, **BRIEF}
    alone = marked.infill("one, two, ", ", four", **ask)
    other = marked.stream("something else", max_new_tokens=32, steps=64, stopping="fixed", seed=3)
    next(other)
    crowded = marked.infill("one, two, ", ", four", **ask)
    other.close()
    assert (alone.text, alone.tokens, alone.candidates) == (crowded.text, crowded.tokens, crowded.candidates)


def test_random_seed_is_drawn_once_for_all_lengths_and_reported(tiny):
    first = tiny.infill("a b c ", " e f", max_new_tokens=4, steps=2, canvas_length=24)
    again = tiny.infill("a b c ", " e f", max_new_tokens=4, steps=2, canvas_length=24, seed=first.seed)
    assert first.candidates == again.candidates


# --- length of the hole ---------------------------------------------------------------------------------------------


def test_score_is_the_log_likelihood_after_the_prefix(tiny):
    prefix, suffix = "def f(x):\n    return ", "\n\nprint(f(2))\n"
    out = tiny.infill(prefix, suffix, max_new_tokens=4, **BRIEF)
    known = tiny.tokenizer.encode(prefix)
    for candidate in out.candidates:
        ids = torch.tensor([known + tiny.tokenizer.encode(candidate.text + suffix, bos=False)])
        with torch.no_grad():
            hidden = tiny.model.encode(ids, tiny.model.new_cache(1, ids.shape[1]))
            log_probability = tiny.model.logits(hidden[0]).log_softmax(-1)
        wanted = sum(log_probability[i - 1, ids[0, i]].item() for i in range(len(known), ids.shape[1]))
        assert candidate.log_likelihood == pytest.approx(wanted, rel=1e-4)


def test_likeliest_candidate_wins_and_its_neighbours_are_searched(tiny):
    out = tiny.infill("abc ", " xyz", max_new_tokens=12, **BRIEF)
    best = max(out.candidates, key=lambda candidate: candidate.log_likelihood)
    assert out.text == best.text
    tried = {candidate.length for candidate in out.candidates}
    assert {best.length - 1, best.length + 1} & set(range(1, 13)) <= tried
    assert out.finish_reason == ("length" if best.length == 12 else "stop")


def scoring(g, best, text="seven c"):
    """Return the model so that each hole is filled with the beginning of a text, repeated, and texts to score are the
    likelier the closer their length is to `best`."""
    asked, tokens = {}, 2 * g.tokenizer.encode(text, bos=False)

    def submit(submit, request):
        if not isinstance(request, Score):
            beginning = dict(enumerate(tokens[: min(request.pins)]))
            request = replace(request, pins={**beginning, **request.pins})
        id = submit(request)
        asked[id] = request
        return id

    def step(step):
        return [scored(event) if event.kind == "scored" else event for event in step()]

    def scored(event):
        texts = asked[event.request_id].texts
        return replace(event, log_likelihoods=tuple(-float(abs(len(one) - best)) for one in texts))

    return watched(g, submit=submit, step=step)


def test_search_finds_the_length_with_the_best_score(tiny):
    """The score is highest for the whole text."""
    g = scoring(tiny, len(tiny.tokenizer.encode("seven c end", bos=False)))
    assert g.infill("start ", " end", max_new_tokens=12, **BRIEF).text == "seven c"


def test_search_tries_every_length_around_its_best():
    for limit, best in itertools.product((1, 2, 7, 64), range(1, 65)):
        tried = first_lengths(limit)
        assert tried[0] == 1
        assert tried[-1] == limit
        nearest = min(best, limit)
        while more := closer_lengths(tried, min(tried, key=lambda length: abs(length - nearest))):
            assert not set(more) & set(tried)
            tried = sorted([*tried, *more])
        assert nearest in tried


def test_search_whose_time_is_over_begins_no_other_round(tiny):
    """The best length is 10, which is not among the first."""
    g = scoring(tiny, 10 + len(tiny.tokenizer.encode(" xyz", bos=False)))
    options = {"method": "pinned", "max_new_tokens": 12, **BRIEF}
    whole = g.driver.run(g.infill_plan("abc ", " xyz", **options))
    late = g.driver.run(g.infill_plan("abc ", " xyz", seconds=0.0, **options))
    assert [candidate.length for candidate in late.candidates] == first_lengths(12)
    assert {candidate.length for candidate in whole.candidates} >= {*first_lengths(12), 10}


def test_only_given_lengths_are_tried(tiny):
    out = tiny.infill("abc ", " xyz", lengths=[5, 2], **BRIEF)
    assert [candidate.length for candidate in out.candidates] == [2, 5]


# --- boundaries -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def words(tmp_path_factory) -> Tokenizer:
    """A tokenizer with longer tokens, and bytes for unknown characters."""
    raw = json.loads(tokenizer_json())
    vocabulary, merges = raw["model"]["vocab"], []
    for letter in "print(nt ":
        vocabulary.setdefault(letter, len(vocabulary))
    for pair in (("p", "r"), ("i", "n"), ("in", "t"), ("pr", "int"), ("r", "i"), ("(", "(")):
        vocabulary.setdefault("".join(pair), len(vocabulary))
        merges.append(list(pair))
    raw["model"]["merges"] = merges
    directory = tmp_path_factory.mktemp("words")
    (directory / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    return Tokenizer.from_directory(directory)


def test_healing_drops_tokens_that_may_begin_a_longer_one(words):
    healer = words.healer
    assert words.pieces(words.encode("x = pri", bos=False))[-2:] == ["pr", "i"]
    assert healer.split("x = pri") == ("x = ", "pri")
    assert healer.split("x = print") == ("x = print", "")
    assert healer.split("f(") == ("f", "(")
    assert healer.split("é") == ("é", "")
    assert healer.split("pri") == ("pr", "i")  # a prompt must keep at least one token
    assert healer.split("") == ("", "")


@DRAWN
@given(text=st.text(max_size=30), tokens=st.integers(0, 40))
def test_the_nearest_tokens_are_cut_between_characters(tiny, text, tokens):
    for near in (nearest_end(tiny.tokenizer, text, tokens), nearest_start(tiny.tokenizer, text, tokens)):
        assert len(near.encode()) <= tokens
        assert len(near.encode()) > tokens - 4 or near == text
    assert text.endswith(nearest_end(tiny.tokenizer, text, tokens))
    assert text.startswith(nearest_start(tiny.tokenizer, text, tokens))


def healing(tiny, *texts):
    """Return the model so that it heals after `pri`, although its tokens are bytes, and generates the given texts; and
    the list of its requests."""
    rounds, seen = iter(texts), []

    def write(request):
        seen.append(request)
        ids = dict(enumerate(tiny.tokenizer.encode(next(rounds), bos=False)))
        return replace(request, pins={**ids, **request.pins})

    g = changing(tiny, write)
    g.tokenizer = Watched(tiny.tokenizer)
    g.tokenizer.healer = Watched(tiny.healer, split=lambda split, text: (text.removesuffix("pri"), "pri"))
    return g, seen


def test_healed_middle_excludes_the_dropped_end_of_the_prefix(tiny):
    g, seen = healing(tiny, "print(")
    out = g.infill("x = pri", "1)", lengths=[3], **BRIEF)
    assert out.text == "nt("
    assert [request.prompt for request in seen] == [tuple(tiny.tokenizer.encode("x = "))]


def test_new_text_begins_with_the_dropped_end_whatever_the_model_predicts(tiny):
    g, seen = healing(tiny, "")
    out = g.infill("x = pri", "1)", lengths=[3], **BRIEF)
    assert out.tokens[:3] == tuple(tiny.tokenizer.encode("pri", bos=False))
    assert len(seen) == 1 and len(out.tokens) == 6


def test_no_healing_if_the_dropped_end_could_contain_a_stop_string(tiny):
    g, seen = healing(tiny, "ma(ri")
    out = g.infill("x = pri", "1)", lengths=[5], stop="ri", **BRIEF)
    assert out.text == "ma("
    assert [r.prompt for r in seen] == [tuple(tiny.tokenizer.encode("x = pri"))]


def test_middle_that_ends_inside_a_character_is_cut_before_it(tiny):
    half = tiny.tokenizer.encode("aé", bos=False)[:2]
    g = changing(tiny, lambda r: replace(r, pins={**dict(enumerate(half)), **r.pins}))
    assert g.infill("x", "y", lengths=[2], **BRIEF).text == "a"


def test_stop_string_ends_a_pinned_middle_but_is_ignored_after_it(tiny):
    g, _ = healing(tiny, "print(1)\n2", "print(a")
    assert g.infill("x = pri", "\nend\n", lengths=[7], stop="\n", **BRIEF).text == "nt(1)"
    assert g.infill("x = pri", "b)", lengths=[4], stop="ab", **BRIEF).text == "nt(a"


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prefix": "", "suffix": ""}, "no text around the hole"),
        ({"prefix": None}, "prefix must be text"),
        ({"suffix": b"x"}, "suffix must be text"),
        ({"prefix": "\ud800"}, "half a surrogate"),
        ({"method": "magic"}, "auto, prompt, pinned"),
        ({"method": "prompt"}, "has no <|fim_prefix|>"),
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": [24]}, "from 1 to 23"),
        ({"lengths": [0]}, "from 1 to 23"),
        ({"suffix": "", "lengths": [3]}, "pinned suffix"),
        ({"context": 0}, "context must be"),
        ({"canvas_length": 1}, "too short for a hole"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"pins": {0: 5}}, "pins is an option of generate only"),
        ({"resume": None}, "resume is an option of generate only"),
        ({"wings": 2}, "unknown diffusion setting wings"),
        ({"prefix": "x" * 9000}, "context=N"),
    ],
)
def test_invalid_infill_is_rejected_and_leaves_nothing_behind(tiny, arguments, words):
    with pytest.raises(gesso.InputError, match=words.replace("|", r"\|")):
        tiny.infill(**{"prefix": "abc", "suffix": "xyz", **BRIEF, **arguments})
    assert not tiny.engine.busy


def test_context_limits_the_visible_text(tiny):
    asked = Asked()
    asked.watching(tiny).infill("x" * 9000, "y" * 9000, context=8, lengths=[2], **BRIEF)
    [(request, _)] = asked.done
    assert request.prompt == tuple(tiny.tokenizer.encode("x" * 8))
    assert len(request.pins) == 8


def test_text_that_contains_markers_is_pinned(marked):
    out = marked.infill("the marker <|fim_prefix|> ", " is special", max_new_tokens=2, **BRIEF)
    assert out.method == "pinned"
    with pytest.raises(gesso.InputError, match="the text itself has"):
        marked.infill("the marker <|fim_prefix|> ", " is special", method="prompt", **BRIEF)


def test_either_side_may_be_empty(tiny):
    assert tiny.infill("abc", "", max_new_tokens=4, **BRIEF).candidates == ()
    assert tiny.infill("", "abc", max_new_tokens=4, **BRIEF).candidates


@pytest.mark.parametrize("parts", [[], ["a"], "ab", ["a", "", "b"]])
def test_invalid_parts_are_rejected(tiny, parts):
    with pytest.raises(gesso.InputError, match=r"parts are|nothing between"):
        tiny.infill_holes(parts, **BRIEF)

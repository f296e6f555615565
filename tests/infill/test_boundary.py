"""Cuts between any two characters: the given text stays unchanged, and the new text is valid."""

import copy
import itertools
import random

import pytest

import gesso
from gesso.checkpoint.find import find
from gesso.checkpoint.write import save
from gesso.engine.request import Request
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from tests.tiny import CONFIG, randomise

SAMPLES = (
    "def print_all(xs):\r\n    for x in xs:\r\n        print(x, 'naïve café')\r\n",
    "👩‍👩‍👧‍👦 family, 👍🏽 thumbs, 🇯🇵 flag, 🙂🙃",
    "日本語のテキスト、漢字とかな。中文測試",
    "e\u0301 a\u0308\u0323 \u1112\u1161\u11ab नि ก็ \u200bzero\u200d",
    "x\t= 1\n\n\n        deep_indent()\n\r\r\n\x00\x7f end",
)


@pytest.fixture(scope="module")
def wordy(tmp_path_factory):
    """Random weights with the tokenizer of gesso-mini: long tokens, bytes for unknown characters, markers for holes."""
    config = copy.deepcopy(CONFIG)
    config["text_config"]["vocab_size"] = 4096
    model = DiffusionGemma(Config.from_dict(config))
    randomise(model, seed=0, std=0.2)
    tokenizer = (find(None) / "tokenizer.json").read_text(encoding="utf-8")
    directory = tmp_path_factory.mktemp("wordy") / "model"
    save(model, directory, files={"tokenizer.json": tokenizer, "generation_config.json": "{}\n"})
    return gesso.load(directory)


def cuts(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(SAMPLES)
        start = rng.randrange(len(text) + 1)
        yield text, start, min(len(text), start + rng.choice((0, 1, 1, 2, 5))), rng.randrange(2**32)


@pytest.mark.parametrize("model", ["tiny", "marked", "wordy"])
@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_cut_anywhere_keeps_both_sides_and_writes_text(model, method, request):
    if (model, method) == ("tiny", "prompt"):
        return  # it has no markers
    g = request.getfixturevalue(model)
    for text, start, end, seed in cuts(model + method, 8):
        options = {"lengths": [1, 4]} if method == "pinned" and text[end:] else {"max_new_tokens": 4}
        seen = []
        brief = {"steps": 1, "canvas_length": 16, "seed": seed, "method": method}
        found = watched_infill(g, seen, text[:start], text[end:], **brief, **options)
        assert found.text == found.text.encode().decode()
        for asked, result in seen:
            kept, dropped = g.healer.split(text[:start])
            healed = asked.guide is not None
            # The prompt is the prefix, or the part that healing kept; the dropped part is written again.
            assert text[:start] == kept + dropped
            prompt = g.tokenizer.decode(asked.prompt)
            if method == "pinned" or model == "tiny":
                assert prompt == (kept if healed else text[:start])
            written = b"".join(g.guides.words.bytes_of.get(token, b"") for token in result.tokens)
            assert written.startswith(dropped.encode() if healed else b"")
            # The pinned text is the start of the suffix, cut between characters.
            pinned = [token for _, token in sorted(asked.pins.items())]
            assert text[end:].startswith(g.decode(pinned)) and (not asked.pins or pinned)


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_edit_anywhere_keeps_every_byte_around_it(wordy, method):
    for text, start, end, seed in cuts(method, 8):
        level = random.Random(seed).choice((0.3, 1.0)) if start < end else 1.0
        limit = {"max_new_tokens": 3} if level == 1 else {}
        out = wordy.edit(text, (start, end), method=method, level=level, steps=1, canvas_length=16, seed=seed, **limit)
        assert out.text.encode() == text[:start].encode() + out.replacement.encode() + text[end:].encode()


def test_constraint_holds_for_the_hole_after_healing(wordy, tiny):
    for g, method in ((wordy, "prompt"), (wordy, "pinned"), (tiny, "pinned")):
        for prefix, seed in (("x = pri", 1), ("age:  ", 2), ("a\r", 3), ("日", 4)):
            options = {"max_new_tokens": 8, "steps": 1, "canvas_length": 24, "seed": seed}
            out = g.infill(prefix, "\nend(x)\n", method=method, regex="[0-9]{2,4}é", **options)
            assert out.text[:-1].isdecimal() and out.text[-1] == "é" and 3 <= len(out.text) <= 5


def test_healing_does_not_take_spaces_from_the_text_after_the_hole(wordy):
    """Several spaces can be one token that is too long for the search; the pinned spaces must not replace its rest."""
    for spaces in (2, 25):
        for length in (1, 2):
            seen = []
            brief = {"steps": 1, "canvas_length": 24, "seed": 1, "method": "pinned", "lengths": [length]}
            found = watched_infill(wordy, seen, "a:" + " " * spaces, " " * spaces + "'b'", **brief)
            [(asked, result)] = seen
            # Nothing is dropped if the text after the hole could be mistaken for a part of it.
            assert asked.guide is None or len(wordy.healer.split("a:" + " " * spaces)[1]) == 1
            hole = len(result.tokens) - len(asked.pins)
            prompt = wordy.tokenizer.decode(asked.prompt)
            assert prompt + wordy.decode(result.tokens[:hole]) == "a:" + " " * spaces + found.text
        text = "a:" + " " * spaces + "x = 1"
        for method, seed in itertools.product(("prompt", "pinned"), range(4)):
            span = (2 + spaces // 2, len(text) - 1)
            out = wordy.edit(text, span, level=0.5, method=method, steps=1, canvas_length=24, seed=seed)
            assert out.text == text[: span[0]] + out.replacement + "1"


def test_half_a_surrogate_pair_is_rejected(wordy):
    with pytest.raises(gesso.InputError, match="half a surrogate pair"):
        wordy.infill("\ud83d", "x", max_new_tokens=2)


def watched_infill(g, seen, *texts, **options):
    """Run `Gesso.infill` and append its requests and their results to `seen`."""
    plan = g.infill_plan(*texts, **options)

    def watched():
        results = None
        while True:
            try:
                requests = next(plan) if results is None else plan.send(results)
            except StopIteration as end:
                return end.value
            results = yield requests
            pairs = zip(requests, results, strict=True)
            seen.extend((request, result) for request, result in pairs if isinstance(request, Request))

    return g.driver.run(watched())

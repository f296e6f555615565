"""All methods and options of the Python API, on a GPU with gesso-mini.

Every request runs several times on one engine: its first pass is eager, the second is captured as a CUDA graph, and
later passes replay it. The text must not depend on that.
"""

import json
import re

import pytest

import gesso
from examples.samplers import rules
from gesso import adapters
from gesso.adapters import LoraSettings
from tests.gpu.device import DEVICE

pytestmark = pytest.mark.gpu

BRIEF = {"canvas_length": 32, "steps": 8, "max_new_tokens": 48, "seed": 3}
PROMPT = "def mean(values):\n"
BEFORE, AFTER = "def area(r):\n    return ", " * r * r\n\nprint(area(2))\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer"},
        "kind": {"enum": [1, "b"]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "store", "parameters": SCHEMA}}


def same(ask, times=3):
    """Return the result that every call of `ask` gives."""
    first, *others = [ask() for _ in range(times)]
    assert all((other.text, other.tokens) == (first.text, first.tokens) for other in others)
    return first


def assert_fits_schema(value):
    assert set(value) == {"name", "size", "kind"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 12
    assert float(value["size"]).is_integer() and value["kind"] in (1, "b")  # 10.0 is an integer of JSON Schema


# --- generate, stream, chat -----------------------------------------------------------------------------------------


def test_generate(mini):
    found = same(lambda: mini.generate(PROMPT, **BRIEF))
    assert found.text.strip() and 0 < found.usage.completion_tokens <= 48
    # A confident model gives one text for many seeds.
    assert len({mini.generate(PROMPT, **BRIEF | {"seed": seed}).text for seed in range(8)}) > 1


def test_commits_of_a_stream_join_to_the_text(mini):
    whole = mini.generate(PROMPT, **BRIEF)
    events = list(mini.stream(PROMPT, **BRIEF))
    assert [event.kind for event in events].count("draft") == whole.usage.denoising_steps
    assert "".join(event.text for event in events if event.kind == "commit") == whole.text
    assert events[-1].kind == "done" and events[-1].result.tokens == whole.tokens


def test_a_draft_resumes_to_the_same_text(mini):
    options = BRIEF | {"stopping": "fixed"}
    drafts = [event for event in mini.stream(PROMPT, **options) if event.kind == "draft"]
    whole = mini.generate(PROMPT, **options)
    for draft in (drafts[0], drafts[5]):
        assert mini.generate(PROMPT, resume=draft, **options).tokens == whole.tokens


def test_chat(mini):
    found = same(lambda: mini.chat([{"role": "user", "content": "Hello!"}], **BRIEF))
    assert found.text.strip()


# --- structured output ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regex", [r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[a-z]{3,30}\.", r'"([^"\\\x00-\x1f]|\\["\\nt])*"'])
def test_regex(mini, regex):
    found = same(lambda: mini.generate("when = ", regex=regex, **BRIEF))
    assert re.fullmatch(regex, found.text)


def test_json_schema(mini):
    found = same(lambda: mini.generate("item = ", json_schema=SCHEMA, **BRIEF | {"max_new_tokens": 96}))
    assert_fits_schema(json.loads(found.text))


def test_choice(mini):
    texts = ["yes", "no", "it depends"]
    assert same(lambda: mini.generate("answer = ", choice=texts, **BRIEF)).text in texts


def test_grammar(mini):
    grammar = 'root ::= "[" number ("," number)* "]"\nnumber ::= "-"? [0-9]{1,3}'
    found = same(lambda: mini.generate("values = ", grammar=grammar, **BRIEF | {"max_new_tokens": 64}))
    assert re.fullmatch(r"\[-?[0-9]{1,3}(,-?[0-9]{1,3})*\]", found.text)


def test_tool_calls(mini):
    ask = [{"role": "user", "content": "Store the box."}]
    options = BRIEF | {"max_new_tokens": 96}
    found = same(lambda: mini.chat(ask, tools=[TOOL], tool_choice="required", **options))
    (call,) = found.tool_calls
    assert call.name == "store" and not found.malformed_calls
    assert_fits_schema(call.arguments)


@pytest.mark.parametrize("sampler", ["entropy-bound", *rules.SAMPLERS])
def test_every_sampler_satisfies_a_constraint(mini, sampler):
    sampler = rules.SAMPLERS.get(sampler, sampler)
    assert re.fullmatch("[a-c]{5,20}", mini.generate("x", regex="[a-c]{5,20}", sampler=sampler, **BRIEF).text)


def test_writing_token_by_token_satisfies_a_constraint(mini):
    options = {"seed": 1, "max_new_tokens": 24, "write": "tokens"}
    assert re.fullmatch("[a-c]{5,20}", mini.generate("x", regex="[a-c]{5,20}", **options).text)


# --- infill and edit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_infill(mini, method):
    options = BRIEF | {"max_new_tokens": 8}
    found = same(lambda: mini.infill(BEFORE, AFTER, method=method, **options), times=2)
    assert found.method == method and found.usage.denoising_steps


@pytest.mark.parametrize("method", ["prompt", "pinned"])
def test_infill_takes_the_likeliest_candidate(mini, method):
    options = BRIEF | {"max_new_tokens": 8}
    found = same(lambda: mini.infill(BEFORE, AFTER, method=method, candidates=3, **options), times=2)
    best = max(found.candidates, key=lambda candidate: candidate.log_likelihood)
    assert found.text == best.text
    assert len(found.candidates) == 3 if method == "prompt" else len(found.candidates) > 1


def test_pinned_infill_under_a_constraint(mini):
    found = mini.infill(BEFORE, AFTER, method="pinned", regex=r"[0-9]\.[0-9]{2}", lengths=[3, 4, 5], **BRIEF)
    assert re.fullmatch(r"[0-9]\.[0-9]{2}", found.text)


def test_infill_of_several_holes(mini):
    parts = ["def add(a, b):\n    return ", "\n\ndef sub(a, b):\n    return ", "\n"]
    found = mini.infill_holes(parts, **BRIEF | {"max_new_tokens": 8})
    middles = [middle.text for middle in found.middles]
    assert found.text == parts[0] + middles[0] + parts[1] + middles[1] + parts[2]


@pytest.mark.parametrize("method, level", [("prompt", 1.0), ("pinned", 1.0), ("pinned", 0.5)])
def test_edit_changes_nothing_outside_the_span(mini, method, level):
    text = "total = 0\nfor value in values:\n    total += value\nprint(total)\n"
    span = text.index("total +="), text.index("print")
    # Below level 1 the span keeps its number of tokens.
    options = BRIEF | {"max_new_tokens": 8 if level == 1 else None}
    found = same(lambda: mini.edit(text, span, method=method, level=level, **options), times=2)
    assert found.text == text[: span[0]] + found.replacement + text[span[1] :]


# --- settings of the diffusion --------------------------------------------------------------------------------------


# Built-in rules advance in captured passes, the others outside of them.
@pytest.mark.parametrize(
    ("sampler", "stopping"),
    [
        ("entropy-bound", "stable"),
        ("entropy-bound", "fixed"),
        ("entropy-bound", rules.TopTwoGap()),
        ("entropy-bound", rules.Plateau()),
        *((sampler, "stable") for sampler in rules.SAMPLERS.values()),
    ],
    ids=str,
)
def test_every_sampler_and_every_stopping_rule(mini, sampler, stopping):
    options = BRIEF | {"sampler": sampler, "stopping": stopping, "confidence": 0.5}
    found = same(lambda: mini.generate(PROMPT, **options))
    if stopping == "fixed":
        assert found.usage.denoising_steps == 8 * (found.usage.canvases + found.usage.redrawn)
    others = [mini.request("import ", **BRIEF), mini.request(PROMPT, **options), mini.request("x = [", **BRIEF)]
    assert mini.run(others)[1].tokens == found.tokens


def test_token_by_token(mini):
    found = same(lambda: mini.generate(PROMPT, write="tokens", seed=1, max_new_tokens=16))
    assert found.usage.canvases == found.usage.denoising_steps >= found.usage.completion_tokens > 0


@pytest.mark.parametrize(
    "options",
    [{"settle": 1, "confidence": 0.5}, {"greed": 0.7}, {"eos_settles": True}, {"preset": "fast"}, {"pins": {0: 300}}],
    ids=lambda options: next(iter(options)),
)
def test_other_settings(mini, options):
    found = same(lambda: mini.generate(PROMPT, **BRIEF | options))
    if "pins" in options:
        assert found.tokens[0] == 300


# --- logprobs -------------------------------------------------------------------------------------------------------


def test_logprobs_equal_those_of_the_cpu_in_float32():
    """After one step from the same noise. Later steps amplify rounding."""
    found = []
    for device in ("cpu", DEVICE):
        g = gesso.load(device=device, dtype="float32")
        options = {"canvas_length": 32, "steps": 1, "stopping": "fixed", "max_new_tokens": 32, "seed": 3}
        events = list(g.stream(PROMPT, top_logprobs=5, draft_logprobs=2, **options))
        (commit,) = [event for event in events if event.kind == "commit"]
        (draft,) = [event for event in events if event.kind == "draft"]
        assert len(draft.likely) == 32 and all(len(entry.top) == 2 for entry in draft.likely)
        assert all(len(entry.top) == 5 for entry in commit.likely)
        for entry in (*commit.likely, *draft.likely):
            values = [value for _, value in entry.top]
            assert values == sorted(values, reverse=True) and values[0] <= 0 and entry.token <= values[0] + 1e-6
        found.append([(dict(entry.top), entry.token) for entry in draft.likely])
    for (cpu, _), (gpu, _) in zip(*found, strict=True):
        shared = cpu.keys() & gpu.keys()
        assert shared and all(cpu[token] == pytest.approx(gpu[token], abs=5e-3) for token in shared)


# --- adapters -------------------------------------------------------------------------------------------------------


def test_adapters_on_attention_and_on_experts(tmp_path):
    """Save two adapters, load both and switch between them; None restores the base model."""
    directories = {}
    for seed, target in enumerate(("attention", "experts")):
        g = gesso.load(device="cpu")
        settings = LoraSettings(rank=2, targets=(target,))
        adapters.add(g.model, settings, seed=seed)
        for name, parameter in g.model.named_parameters():
            if name.endswith(".B"):
                parameter.data.normal_(0.0, 0.05)
        directories[target] = tmp_path / target
        adapters.save(g.model, directories[target], settings)
    g = gesso.load(device=DEVICE, adapter=directories)
    texts = {}
    for name in (None, "attention", "experts"):
        g.use_adapter(name)
        texts[name] = same(lambda: g.generate(PROMPT, **BRIEF)).tokens
    assert len(set(texts.values())) == 3
    for name in ("experts", None, "attention"):
        g.use_adapter(name)
        assert g.generate(PROMPT, **BRIEF).tokens == texts[name]
    assert texts[None] == gesso.load(device=DEVICE).generate(PROMPT, **BRIEF).tokens

"""The Python API: import time, results and events, chat, and rejected arguments."""

import subprocess
import sys

import pytest
import torch

import gesso
from gesso import Commit, Done, Draft

FEW = {"max_new_tokens": 8, "steps": 2}


def test_importing_gesso_imports_only_the_standard_library():
    """Torch alone takes seconds to import; it is imported when a model is loaded."""
    code = "import sys; before = set(sys.modules); import gesso; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.split(".")[0] for name in done.stdout.split()}
    assert packages - set(sys.stdlib_module_names) == {"gesso"}


def test_public_names_of_result_and_model(tiny):
    out = tiny.generate("def fib(n):", max_new_tokens=12, seed=7, preset="balanced", steps=2)
    assert isinstance(out.text, str)
    assert len(out.tokens) <= 12
    assert out.finish_reason in ("stop", "length")
    usage = out.usage
    assert usage.prompt_tokens == len(tiny.tokenizer.encode("def fib(n):"))
    assert usage.completion_tokens == len(out.tokens)
    assert usage.tokens_per_step == usage.completion_tokens / usage.denoising_steps
    assert usage.canvases == 1
    assert isinstance(tiny.model, torch.nn.Module)
    cache = tiny.model.new_cache(1, 64)
    hidden = tiny.model.encode(torch.tensor([[2, 5, 6]]), cache)
    logits = tiny.model.denoise(torch.zeros(1, 4, dtype=torch.long), cache, previous_logits=None)
    assert (hidden.shape, logits.shape, logits.dtype) == ((1, 3, 64), (1, 4, 384), torch.float32)
    assert tiny.tokenizer.decode(tiny.tokenizer.encode("héllo")) == "héllo"


def test_stream_yields_drafts_then_commit_per_canvas_then_done(tiny):
    events = list(tiny.stream("abc", max_new_tokens=40, steps=3, stopping="fixed", canvas_length=16, seed=2))
    assert [type(e) for e in events] == [Draft] * 3 + [Commit] + [Draft] * 3 + [Commit] + [Draft] * 3 + [Commit, Done]
    draft = events[1]
    assert len(draft.tokens) == len(draft.entropy) == len(draft.stable) == 16
    assert draft.text == tiny.decode(draft.tokens)
    again = tiny.generate("abc", max_new_tokens=40, steps=3, stopping="fixed", canvas_length=16, seed=2)
    assert events[-1].result.tokens == again.tokens


def test_random_seed_is_in_the_result_and_reproduces_the_text(tiny):
    first, second = (tiny.generate("abc", **FEW) for _ in range(2))
    assert first.seed != second.seed
    assert tiny.generate("abc", seed=first.seed, **FEW).tokens == first.tokens


def test_chat_separates_thoughts_tool_calls_and_text(tiny):
    """Pins make the answer known: a thought, a tool call, and text."""
    written = '<|channel>thought\nhm<channel|>Hi.<|tool_call>call:f{a:<|"|>x<|"|>,n:3}<tool_call|>'
    ids = tiny.tokenizer.encode(written, bos=False)
    out = tiny.chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
        thinking=True,
        max_new_tokens=len(ids),
        pins=dict(enumerate(ids)),
    )
    assert (out.text, out.thinking) == ("Hi.", "hm")
    assert [(call.name, call.arguments) for call in out.tool_calls] == [("f", {"a": "x", "n": 3})]


def test_call_without_tools_is_malformed_and_the_answer_is_not_blank(tiny):
    ids = tiny.tokenizer.encode('<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>', bos=False)
    out = tiny.chat([{"role": "user", "content": "Hi"}], max_new_tokens=len(ids), pins=dict(enumerate(ids)))
    assert (out.text, out.tool_calls) == ('f{a:"x"}', ()) and out.malformed_calls


def test_json_schema_is_in_the_prompt_of_a_chat_unless_turned_off(tiny):
    messages, schema = [{"role": "user", "content": "Hi"}], {"type": "object", "properties": {}}
    shown, hidden = (tiny.chat_request(messages, json_schema=schema, schema_in_prompt=on) for on in (True, False))
    assert tiny.decode(shown.prompt).count('Answer in JSON by this schema: {"type":"object","properties":{}}') == 1
    assert hidden.prompt == tiny.chat_request(messages).prompt
    assert tiny.chat_request(messages, json_schema=schema).prompt == shown.prompt


def test_only_thoughts_and_tool_calls_may_begin_an_answer_with_a_special_token(tiny):
    special = {tiny.tokenizer.id_of(piece) for piece in ("<|channel>", "<|tool_call>")}
    assert not special & tiny.never_first
    assert {0, 1, 2, 106, 105, 50} <= tiny.never_first


def test_stop_string_inside_a_token_ends_a_chat_there(tiny):
    ids = [tiny.tokenizer.id_of(f"<unused{i}>") for i in (90, 91, 92)]
    special = dict(enumerate(tiny.tokenizer.encode("<|channel>thought\nhm<channel|>", bos=False)))
    pins = special | {len(special) + i: token for i, token in enumerate(ids)}
    out = tiny.chat([{"role": "user", "content": "Hi"}], pins=pins, max_new_tokens=len(pins), stop="used91", seed=0)
    assert (out.text, out.thinking, out.finish_reason) == ("<unused90><un", "hm", "stop")


def test_closed_and_unread_streams_leave_no_request_running(tiny):
    tiny.stream("abc", **FEW)
    events = tiny.stream("abc", **FEW)
    next(events)
    events.close()
    tiny.generate("abc", **FEW)
    assert not tiny.engine.busy
    assert not tiny.driver.runs


def test_saved_model_loads_and_gives_the_same_text(tiny, tmp_path):
    tiny.save(tmp_path / "copy")
    copy = gesso.load(tmp_path / "copy")
    assert copy.generate("abc", seed=4, **FEW).tokens == tiny.generate("abc", seed=4, **FEW).tokens


def test_decode_skips_ids_beyond_the_tokenizer(tiny):
    assert tiny.decode([200, 10_000, 201]) == tiny.decode([200, 201])


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1.0}, "temprature"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"preset": "best"}, "best"),
        ({"sampler": "gibbs"}, "must be one of entropy-bound"),
        ({"stopping": 3}, "stopping"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"entropy_bound": -1}, "entropy_bound"),
        ({"entropy_bound": float("inf")}, "entropy_bound"),
        ({"t_min": 0.0}, "t_min"),
        ({"t_max": 0.1}, "t_max"),
        ({"stability": -1}, "stability"),
        ({"confidence": 0}, "confidence"),
        ({"canvas_length": 0}, "canvas_length"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 9000}, "context overflow"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop string is empty"),
        ({"pins": {8: 5}, "max_new_tokens": 8}, "position 8"),
        ({"pins": {-1: 5}}, "position -1"),
        ({"pins": {0: 384}}, "384"),
        ({"pins": {0: -1}}, "-1"),
        ({"pins": {0: 200.7}}, "200.7"),
        ({"pins": {1.5: 3}}, "1.5"),
        ({"max_new_tokens": 5.0}, "max_new_tokens"),
        ({"max_new_tokens": "5"}, "max_new_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [3]}, "stop string"),
    ],
)
def test_bad_option_is_named_and_leaves_no_request_running(tiny, options, words):
    with pytest.raises(gesso.InputError, match=words):
        tiny.generate("abc", **options)
    assert not tiny.engine.busy


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_empty_prompt_is_rejected(tiny, prompt):
    with pytest.raises(gesso.InputError, match="prompt is empty"):
        tiny.generate(prompt)


def test_prompt_beyond_the_context_is_rejected_with_the_numbers(tiny):
    with pytest.raises(gesso.InputError, match=r"8101 tokens and 100 new ones exceed the context of 8192"):
        tiny.generate("a" * 8100, max_new_tokens=100)


def test_prompt_token_outside_the_vocabulary_is_named(tiny):
    with pytest.raises(gesso.InputError, match="384"):
        tiny.generate([2, 384])


def test_stream_rejects_bad_input_at_the_call(tiny):
    with pytest.raises(gesso.InputError):
        tiny.stream("abc", steps=0)


def test_load_rejects_unknown_arguments():
    with pytest.raises(TypeError, match="quantise"):
        gesso.load(quantise="fp8")


@pytest.mark.parametrize("prompt", [None, 5, [2, 3.5], {"a": 1}])
def test_prompt_of_another_type_is_rejected(tiny, prompt):
    with pytest.raises(gesso.InputError, match="prompt"):
        tiny.generate(prompt)


def test_default_length_ends_with_the_context(tiny):
    out = tiny.generate([200] * 8180, steps=1)
    assert len(out.tokens) <= 12


def test_preset_may_be_a_diffusion_object(tiny):
    settings = gesso.Diffusion(steps=3, stopping="fixed")
    out = tiny.generate("abc", preset=settings, max_new_tokens=4, seed=1)
    assert out.usage.denoising_steps in (3, 6)
    assert out.tokens == tiny.generate("abc", steps=3, stopping="fixed", max_new_tokens=4, seed=1).tokens


def test_event_and_result_types_are_exported(tiny):
    events = list(tiny.stream("abc", **FEW))
    assert isinstance(events[0], gesso.Draft)
    assert isinstance(events[-2], gesso.Commit)
    assert isinstance(events[-1], gesso.Done)
    assert isinstance(events[-1].result, gesso.Result)


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_batch": -1}, {"max_length": 0}, {"max_length": -5}])
def test_load_rejects_an_empty_batch_or_context(tiny_directory, options):
    with pytest.raises(gesso.InputError, match=next(iter(options))):
        gesso.load(tiny_directory, **options)


@pytest.mark.parametrize("options", [{"device": "gpu"}, {"dtype": "float8"}, {"dtype": torch.int8}])
def test_load_rejects_unknown_devices_and_dtypes(tiny_directory, options):
    with pytest.raises(gesso.InputError):
        gesso.load(tiny_directory, **options)


def test_cache_rejects_overflow_before_it_writes(tiny):
    cache = tiny.model.new_cache(2, 10)
    with pytest.raises(gesso.InputError, match="context overflow"):
        tiny.model.encode(torch.zeros(2, 11, dtype=torch.long), cache)
    assert cache.lengths == [0, 0]
    for wrong in (torch.zeros(3, 4), torch.zeros(4), torch.zeros(1, 0)):
        with pytest.raises(gesso.InputError):
            tiny.model.encode(wrong.long(), cache)
    with pytest.raises(gesso.InputError, match="padding"):
        tiny.model.encode(torch.zeros(1, 3, dtype=torch.long), cache, padding=torch.ones(1, 3, dtype=torch.bool))

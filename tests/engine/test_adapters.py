"""Adapters in the engine: several in one batch, and loaded and unloaded while requests run."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import gesso
from gesso import Commit, adapters
from gesso.adapters.files import CONFIG
from gesso.adapters.sites import adapter_sites
from gesso.backends.torch import TorchBackend
from gesso.engine.engine import Engine
from gesso.engine.plan import echo
from gesso.engine.request import Score
from gesso.errors import CheckpointError, InputError
from gesso.infill.candidates import likeliest
from tests import loras
from tests.backends.passes import CapturesPlainly
from tests.engine.models import with_engine, with_graphs
from tests.engine_requests import PROMPT, SMALL, finish, request, result

NAMES = ("a", "b", "c", "d")
LONG = tuple(range(128, 384)) * 2 + (200,)  # two whole pieces of a prompt, and a token


@pytest.fixture(scope="module")
def written(tiny_directory, tmp_path_factory):
    return loras.write(tiny_directory, tmp_path_factory.mktemp("adapters"), NAMES)


@pytest.fixture
def model(tiny_directory, written):
    """The tiny model with four adapters and a single row in its cache, so that every request uses the same one."""
    return gesso.load(tiny_directory, adapter=written, max_batch=1)


@pytest.fixture(scope="module")
def alone(tiny_directory, written):
    """Tokens of a short and of a long prompt, by a model with one adapter or without any."""
    found = {}
    for name in (None, *NAMES):
        g = gesso.load(tiny_directory, adapter=written[name] if name else None)
        adapter = "default" if name else None
        found[name] = [result(g.engine, short(prompt=prompt, adapter=adapter)).tokens for prompt in (PROMPT, LONG)]
    assert len({tokens for texts in found.values() for tokens in texts}) == 10, "every adapter changes the text"
    return found


def short(**changes):
    return request(**{"max_new_tokens": 20, "diffusion": replace(SMALL, steps=3)} | changes)


def test_four_adapters_in_one_batch_give_the_text_of_each_alone_in_the_bundled_model(tmp_path, passes):
    written = loras.write(None, tmp_path, NAMES, size=0.05)
    options = {"seed": 3, "max_new_tokens": 8, "steps": 2, "canvas_length": 8, "top_logprobs": 2}
    together, single = gesso.load(device="cpu", adapter=written), gesso.load(device="cpu")
    together.use_adapter(None)
    ids = [together.engine.submit(together.request("def f(x):", adapter=name, **options)) for name in (None, *NAMES)]
    found = finish(together.engine, *ids)
    assert any({piece.adapter for piece in pieces} == {None, *NAMES} for pieces in passes), "they run in one batch"
    expected = []
    for name in (None, *NAMES):
        if name:
            single.load_adapter(name, written[name])
        expected.append(list(single.stream("def f(x):", adapter=name, **options)))
        if name:
            single.unload_adapter(name)
    for mine, theirs in zip(found, expected, strict=True):
        likely = [[event.likely for event in events if isinstance(event, Commit)] for events in (mine, theirs)]
        assert likely[0] == likely[1], "log-probabilities are equal to the last bit"
        assert mine[-1].result == theirs[-1].result
    assert len({events[-1].result.tokens for events in expected}) == 5, "every adapter changes the text"


def test_packed_passes_serve_requests_with_different_adapters(tiny_directory, written, alone):
    g = gesso.load(tiny_directory, adapter=written)
    engine = Engine(g.model, g.decode, max_batch=5, backend=CapturesPlainly(g.model))
    for name in NAMES:
        engine.add_adapter(name)
    engine.runner.backend.expect(5, 16, engine.scheduler.prefill)
    for _ in range(2):  # a pass is captured when it is needed again
        ids = [engine.submit(short(adapter=name)) for name in (None, *NAMES)]
        found = [events[-1].result.tokens for events in finish(engine, *ids)]
        assert found == [alone[name][0] for name in (None, *NAMES)]
    graphs = engine.runner.backend.graphs
    assert graphs.packed and not graphs.token_passes


def test_rows_of_the_cache_are_reused_only_with_the_same_adapter(model, alone):
    for name, cached in (("a", 0), ("a", 512), ("b", 0), (None, 0), (None, 512), ("b", 0)):
        done = result(model.engine, short(prompt=LONG, adapter=name))
        assert (done.usage.cached_tokens, done.tokens) == (cached, alone[name][1])


def test_scores_and_texts_share_rows_only_with_the_same_adapter(model):
    def scored(name):
        score_id = model.engine.submit(Score(prompt=LONG, texts=((130, 131),), adapter=name))
        return next(event for _ in range(99) for event in model.engine.step() if event.request_id == score_id)

    first = scored("a")
    result(model.engine, short(prompt=LONG, adapter="b"))
    again = scored("a")
    assert again.log_likelihoods == first.log_likelihoods and again.usage.cached_tokens == 0
    assert scored("b").log_likelihoods != first.log_likelihoods


def test_a_reloaded_name_never_reuses_the_keys_and_values_of_its_former_adapter(model, alone, written):
    result(model.engine, short(prompt=LONG, adapter="a"))
    model.unload_adapter("a")
    model.load_adapter("a", written["b"])
    done = result(model.engine, short(prompt=LONG, adapter="a"))
    assert (done.usage.cached_tokens, done.tokens) == (0, alone["b"][1])


def test_unknown_adapters_are_rejected_with_the_known_names(model):
    for wrong in ("e", "", ["a"]):
        with pytest.raises(InputError, match="there is no adapter called .*loaded are: a, b, c, d"):
            model.stream("x", adapter=wrong)
    for call in (model.use_adapter, model.unload_adapter):
        with pytest.raises(InputError, match="no adapter called 'e'"):
            call("e")
    assert model.adapter == "a"


def test_switching_leaves_running_requests_their_adapter(tiny_directory, written):
    g = gesso.load(tiny_directory, adapter=written)
    options = {"seed": 5, "max_new_tokens": 20, "steps": 3, "canvas_length": 16}
    expected = {name: g.generate("abc", adapter=name, **options).tokens for name in ("a", "b")}
    first = g.stream("abc", **options)
    next(first)
    g.use_adapter("b")
    second = g.generate("abc", **options)
    assert second.tokens == expected["b"] != expected["a"]
    assert list(first)[-1].result.tokens == expected["a"]
    draft = next(iter(g.stream("abc", **options)))
    with pytest.raises(InputError, match="resume: the adapter"):
        g.stream("abc", resume=draft, adapter="c", **options)


def test_an_adapter_is_loaded_and_unloaded_while_requests_run(tiny_directory, written, alone):
    g = gesso.load(tiny_directory)
    running = [g.engine.submit(short())]
    for name in NAMES:
        g.engine.step()
        g.load_adapter(name, written[name])
        running.append(g.engine.submit(short(adapter=name)))
    last = g.engine.submit(short(adapter="d", max_new_tokens=64))
    g.engine.step()
    for name in NAMES:
        g.unload_adapter(name)
        with pytest.raises(InputError, match=f"no adapter called '{name}'"):
            g.engine.submit(short(adapter=name))
    with pytest.raises(InputError, match="running requests still use the unloaded adapter 'd'"):
        g.load_adapter("d", written["a"])
    done = [events[-1].result.tokens for events in finish(g.engine, *running)]
    assert done == [alone[name][0] for name in (None, *NAMES)]
    assert adapters.attached(g.model) == ["d"], "the others are free"
    finish(g.engine, last)
    assert adapters.attached(g.model) == [] and not g.engine.adapters.retired
    g.load_adapter("d", written["a"])
    assert result(g.engine, short(adapter="d")).tokens == alone["a"][0]


def test_a_cancelled_request_does_not_keep_an_unloaded_adapter(model):
    stream = model.stream("abc", adapter="b", max_new_tokens=64)
    next(stream)
    model.unload_adapter("b")
    assert "b" in adapters.attached(model.model)
    stream.close()
    model.generate("abc", max_new_tokens=4, steps=1)
    assert "b" not in adapters.attached(model.model)


def test_unloading_the_adapter_of_new_requests_selects_the_base_model(model):
    assert model.request("abc").adapter == "a"
    model.unload_adapter("a")
    assert model.adapter is model.request("abc").adapter is None
    assert {site.active for site in adapter_sites(model.model).values()} == {None}


def test_a_failed_load_changes_nothing(model, alone, written, tmp_path, monkeypatch):
    wrong = tmp_path / "wrong"
    shutil.copytree(written["a"], wrong)
    config = json.loads((wrong / CONFIG).read_text())
    for change, words in (({"r": 3}, "has shape"), ({"r": 10**6}, "rank of an adapter"), ({"peft_type": "IA3"}, "IA3")):
        (wrong / CONFIG).write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=words):
            model.load_adapter("new", wrong)
    with pytest.raises(InputError, match="letters, digits"):
        model.load_adapter("../new", written["a"])
    with pytest.raises(InputError, match="already has an adapter called 'b'"):
        model.load_adapter("b", written["a"])

    def short_of_memory(*arguments):
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        # No test can use up the memory of its machine.
        patched.setattr("gesso.adapters.lora.Lora.requires_grad_", short_of_memory)
        model.load_adapter("new", written["a"])
    changed = iter([short_of_memory, model.engine.runner.backend.adapters_changed])
    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(model.engine.adapters, "_changed", lambda: next(changed)())  # nor at a given place
        model.load_adapter("new", written["a"])
    assert adapters.attached(model.model) == list(model.engine.adapters.known) == list(NAMES)
    assert result(model.engine, short(adapter="b")).tokens == alone["b"][0]


def test_a_pass_leaves_the_model_with_the_adapter_it_had(model):
    def active():
        return {site.active for site in adapter_sites(model.model).values()}

    result(model.engine, short(adapter="b"))
    assert active() == {"a"}
    model.use_adapter("c")
    result(model.engine, short(adapter="b"))
    assert active() == {"c"}
    failing = TorchBackend(model.model)
    failing.attend = None
    other = with_engine(model, backend=failing)
    other.engine.add_adapter("d")
    with pytest.raises(TypeError):
        other.generate("abc", adapter="d", max_new_tokens=4)
    assert active() == {"c"}


def test_a_split_encoder_works_in_one_batch_with_tied_adapters(tiny_directory, alone, written, tmp_path):
    texts = []
    for name, part in (("split", "encoder.language_model"), ("reverse", ".layers.")):
        shutil.copytree(written["b"], tmp_path / name)
        loras.negate(tmp_path / name, part)
        single = gesso.load(tiny_directory, adapter=tmp_path / name)
        texts.append(result(single.engine, short(adapter="default")).tokens)
    split = texts[0]
    assert len({*texts, alone["b"][0]}) == 3, "the parts of encoder and decoder count"
    g = gesso.load(tiny_directory, adapter={"a": written["a"]})
    running = [g.engine.submit(short(adapter="a"))]
    g.engine.step()
    g.load_adapter("split", tmp_path / "split")
    running += [g.engine.submit(short(adapter=name)) for name in ("split", "a")]
    done = [events[-1].result.tokens for events in finish(g.engine, *running)]
    assert done == [alone["a"][0], split, alone["a"][0]]
    g.unload_adapter("split")
    assert result(g.engine, short(adapter="a")).tokens == alone["a"][0]


def test_a_running_model_with_graphs_rejects_an_adapter_that_splits_the_encoder(model, written, tmp_path):
    shutil.copytree(written["b"], tmp_path / "split")
    loras.negate(tmp_path / "split", "encoder.language_model")
    with pytest.raises(InputError, match="changes encoder and decoder differently.*--adapter"):
        with_graphs(model).load_adapter("split", tmp_path / "split")
    assert model.model.is_tied and "split" not in adapters.attached(model.model)


def test_every_request_of_a_plan_has_its_adapter(model, passes):
    few = {"adapter": "b", "steps": 2, "seed": 1, "max_new_tokens": 4}
    prompt = (2, 200, 210)
    calls = {
        "generate": lambda: model.generate("abc", **few),
        "chat": lambda: model.chat([{"role": "user", "content": "abc"}], **few),
        "candidates": lambda: model.driver.run(likeliest(model, model.request("abc", **few), 2)),
        "infill": lambda: model.infill("abc", "def", candidates=2, **few),
        "pinned": lambda: model.infill("abc", "def", method="pinned", **few),
        "holes": lambda: model.infill_holes(["abc", "def", "ghi"], **few),
        "edit": lambda: model.edit("abcdef", (1, 3), instruction="x", **few),
        "revise": lambda: model.edit("abcdef", (1, 3), level=0.5, adapter="b", steps=2),
        "decide": lambda: model.decide("abc", ["x", "y"], adapter="b"),
        "echo": lambda: model.driver.run(echo(prompt, 1, 1, "b")),
    }
    for name, call in calls.items():
        passes.clear()
        call()
        assert passes and {piece.adapter for pieces in passes for piece in pieces} == {"b"}, name


def test_requests_use_the_adapter_that_is_active_in_the_model(tiny_directory):
    """As samples of a model in training do."""
    base = gesso.load(tiny_directory)
    settings = {"max_new_tokens": 8, "steps": 2, "seed": 1}
    plain = base.generate("a", **settings).tokens
    adapters.add(base.model, adapters.LoraSettings(rank=4))
    for site in set(adapter_sites(base.model).values()):
        if (lora := site.get("default")) is not None:
            torch.nn.init.normal_(lora.B, std=1.0)
    adapted = gesso.Gesso(base.model, base.tokenizer, base.defaults, base.directory, max_batch=1, max_length=None)
    assert adapted.generate("a", **settings).tokens != plain

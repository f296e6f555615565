"""Captured passes give the same results as eager passes.

Without a GPU nothing is captured, but the static tensors, and the copies into and out of them, are the same.
"""

import copy
import gc
import weakref

import pytest

from examples.samplers import rules
from gesso import Done, Draft
from gesso.adapters.lora import Lora
from gesso.adapters.sites import make_adaptable
from gesso.backends.cuda import CudaBackend
from gesso.engine.engine import Engine
from gesso.engine.events import Failed
from tests.backends.passes import CapturesPlainly
from tests.engine.models import has_captured, with_engine, with_graphs
from tests.engine_requests import request, result

OPTIONS = (
    {},
    {"settle": 0},
    {"settle": 1, "confidence": 0.5},
    {"stability": 3, "confidence": 10.0},
    {"eos_settles": True, "confidence": 10.0, "stability": 0},
    {"greed": 0.5},
    {"stopping": "fixed", "greed": 1.0},
    # These take their steps outside of the graph.
    {"sampler": rules.ConfidenceThreshold(), "greed": 0.5},
    {"sampler": rules.Ancestral(), "stopping": "fixed"},
    {"sampler": rules.StableTokens(), "t_max": 0.05, "t_min": 0.05, "settle": 1, "confidence": 5.0},
    {"stopping": rules.Plateau()},
)


def outcome(g, requests):
    """Return the tokens of all drafts and results of each request."""
    ids = [g.engine.submit(request) for request in requests]
    seen = {i: [] for i in ids}
    while g.engine.busy:
        for event in g.engine.step():
            if isinstance(event, Draft):
                seen[event.request_id].append((event.tokens, event.canvas.tokens_C.tolist(), event.final_tokens))
            if isinstance(event, Done):
                seen[event.request_id].append((event.result.tokens, event.result.finish_reason, event.result.usage))
    return [seen[i] for i in ids]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "default")
def test_graph_results_equal_eager_results(pair, options):
    def requests(g):
        shared = {"steps": 4, "canvas_length": 8, "max_new_tokens": 16, **options}
        longer = [g.request("def fib(n):", seed=seed, **shared) for seed in (0, 2**63 + 5)]
        return [*longer, g.request("one two three", seed=3, pins={3: 7, 12: 9}, **shared)]

    plain, graphed = pair
    expected = outcome(plain, requests(plain))
    for _ in range(2):  # a shape is captured when it is seen again
        assert outcome(graphed, requests(graphed)) == expected
    assert has_captured(graphed)


def test_a_fully_pinned_canvas_takes_one_of_its_fixed_steps(pair):
    """With fixed stopping, the stop flag is read only if it can be set. For this canvas it can."""
    plain, graphed = pair
    shared = {"steps": 4, "canvas_length": 4, "max_new_tokens": 4, "stopping": "fixed"}
    shared["pins"] = {at: 200 + at for at in range(4)}
    for g in (plain, graphed, graphed, graphed):  # a shape is captured when it is seen again
        assert g.generate("x", seed=1, **shared).usage.denoising_steps == 1
    assert has_captured(graphed)


def test_requests_with_different_settings_share_a_graph(pair):
    def requests(g):
        return [
            g.request("a", seed=1, steps=4, canvas_length=8, max_new_tokens=16),
            g.request("b c", seed=2, steps=6, canvas_length=4, max_new_tokens=12),
            g.request("d", seed=3, steps=6, canvas_length=8, max_new_tokens=8, regex="[ab]{2,5}"),
        ]

    plain, graphed = pair
    assert outcome(graphed, requests(graphed)) == outcome(plain, requests(plain))
    assert has_captured(graphed)


def test_drafts_of_a_graph_survive_later_steps_and_can_be_resumed(pair):
    _, graphed = pair
    options = {"steps": 6, "canvas_length": 8, "max_new_tokens": 8, "stopping": "fixed", "seed": 5}
    drafts = [event for event in graphed.stream("x y", **options) if isinstance(event, Draft)]
    whole = graphed.generate("x y", **options)
    assert graphed.generate("x y", resume=drafts[2], **options).tokens == whole.tokens
    assert len({tuple(draft.canvas.tokens_C.tolist()) for draft in drafts}) > 1


@pytest.mark.parametrize("sampler", [rules.StableTokens(), rules.Credit(), rules.InformedCorrector()])
def test_a_draft_can_be_resumed_with_another_sampler(pair, sampler):
    options = {"canvas_length": 8, "max_new_tokens": 8, "stopping": "fixed", "seed": 5, "t_max": 0.1, "t_min": 0.05}
    texts = []
    for g in pair:
        drafts = [event for event in g.stream("x y", steps=6, **options) if isinstance(event, Draft)]
        texts.append(g.generate("x y", resume=drafts[2], steps=6, sampler=sampler, **options).tokens)
    assert texts[0] == texts[1]


def test_a_pass_of_a_new_shape_runs_as_captured_parts(tiny):
    """Prompts differ in length and number, so most passes with a prompt have a new shape. Their parts have not."""
    plain, uncaptured = with_engine(tiny), []

    def run(run, pieces, cache):
        uncaptured.append(len(pieces))
        return run(pieces, cache)

    graphed = with_graphs(tiny, run=run)
    options = {"steps": 3, "canvas_length": 8, "max_new_tokens": 8, "stopping": "fixed"}
    for lengths in ((11,), (25,), (12, 13), (26, 27), (15, 31)):
        requests = [
            [g.request(range(100, 100 + length), seed=seed, **options) for seed, length in enumerate(lengths)]
            for g in (plain, graphed)
        ]
        uncaptured.clear()
        assert outcome(graphed, requests[1]) == outcome(plain, requests[0])
    assert not uncaptured


def test_a_divided_pass_has_each_part_of_a_request_once(pair):
    """Texts, canvases and tokens that are written one by one begin together, and their pass has a new shape."""

    def requests(g, length):
        ways = ({"canvas_length": 8, "steps": 3}, {"write": "verified"}, {"write": "tokens"})
        prompt = [100 + i % 200 for i in range(length)]
        return [g.request(prompt, seed=seed, max_new_tokens=4, **way) for seed, way in enumerate(ways)]

    plain, graphed = pair
    for length in (11, 300):  # in one piece and in two
        assert outcome(graphed, requests(graphed, length)) == outcome(plain, requests(plain, length))
    for number, alone in enumerate(requests(graphed, 310)):
        assert outcome(graphed, [alone]) == outcome(plain, [requests(plain, 310)[number]])


def test_a_sampler_that_needs_logits_gets_them_from_captured_passes(pair):
    options = {"seed": 1, "steps": 3, "canvas_length": 8, "max_new_tokens": 16, "sampler": rules.Credit()}
    plain, graphed = pair
    expected = plain.generate("a", **options).tokens
    assert [graphed.generate("a", **options).tokens for _ in range(3)] == [expected] * 3
    assert has_captured(graphed)


def test_an_adapter_on_experts_does_not_prevent_capture(tiny):
    """Its kernels count the tokens of each expert on the device. A pass takes the adapter of each request, not the
    active one.
    """
    model = copy.deepcopy(tiny.model, {id(tiny.config): tiny.config})
    assert CudaBackend(model).graphs.can_capture
    make_adaptable(model)
    experts = model.decoder.layers[0].experts
    experts.gate_up_proj_adapters.put("mine", Lora(experts.gate_up_proj, rank=2, alpha=4.0))
    experts.gate_up_proj_adapters.active = "mine"
    graphs = CudaBackend(model).graphs
    assert graphs.can_capture


def test_with_graphs_no_corrected_prediction_is_read_from_logits(tiny):
    """On a GPU, logits and captured passes may differ in the last bits of a prediction."""

    def unused(logits, hidden):
        raise AssertionError("all logits were computed")

    graphed, waiting, corrected = with_graphs(tiny, logits=unused), [1, 2, 3], []
    options = {"regex": "[ab]{3}[0-9]{4}", "steps": 4, "canvas_length": 8, "max_new_tokens": 8, "stopping": "fixed"}
    while waiting or graphed.engine.busy:
        if waiting:  # each request that joins makes a new shape
            graphed.engine.submit(graphed.request("x", seed=waiting.pop(), **options))
        for event in graphed.engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Draft):
                corrected.append(event.canvas.history[-1].corrected)
    assert any(corrected)


def test_a_backend_and_its_graphs_are_freed_without_the_garbage_collector(tiny):
    """Freeing a graph while another is captured would invalidate that capture."""
    gc.collect()
    gc.disable()
    try:
        engine = Engine(tiny.model, tiny.decode, backend=CapturesPlainly(tiny.model))
        graphs = weakref.ref(engine.runner.backend.graphs)
        result(engine, request(seed=1))
        assert graphs().packed
        del engine
        assert graphs() is None
    finally:
        gc.enable()

"""The captured passes of a server: few shapes, whatever the requests, and the same texts as without them.

Without a GPU nothing is captured, but the tensors with fixed addresses, and the copies into and out of them, are the
same. `tests/gpu/test_packed.py` captures.
"""

import random

import pytest

from gesso.engine.events import Done, Draft, Failed

CANVAS = 8
FAMILY = (
    {},
    {"steps": 3, "t_max": 0.3, "t_min": 0.1, "entropy_bound": 2.0},
    {"settle": 1, "confidence": 0.5},
    {"settle": 1, "slide": 2, "confidence": 10.0},
    {"settle": 2, "confidence": 10.0, "stability": 2},
    {"eos_settles": True, "confidence": 10.0, "stability": 0},
    {"greed": 0.5, "stopping": "fixed"},
    {"max_new_tokens": 5},
    {"max_new_tokens": 13, "canvas_length": 6},
    {"max_new_tokens": 1},
    {"pins": {1: 7, 4: 9}},
    {"pins": {at: 200 + at for at in range(8)}, "max_new_tokens": 8, "stopping": "fixed"},
)
OTHERS = (
    {"regex": "[ab]{2,5}", "max_new_tokens": 8},
    {"regex": "[ab]{3}[0-9]{4}", "max_new_tokens": 8, "stopping": "fixed"},
    {"top_k": 3},
    {"top_p": 0.5, "regex": "[ab]{2,5}", "max_new_tokens": 8},
    {"sampler": "confidence-threshold", "greed": 0.5},
    {"sampler": "ancestral", "stopping": "fixed"},
    {"sampler": "credit", "stopping": "schedule", "settle": 1, "confidence": 5.0},
    {"sampler": "informed-corrector", "entropy_bound": 20.0},
    {"stopping": "top-2-gap", "t_max": 0.5, "t_min": 0.1},
    {"stability": 3, "confidence": 10.0},
    {"stopping": "plateau"},
)


@pytest.fixture
def served(pair):
    """Return the tiny model twice: without graphs, and with all the passes of a server captured."""
    plain, graphed = pair
    backend, engine = graphed.engine.runner.backend, graphed.engine
    backend.expect(4, CANVAS, engine.scheduler.prefill)
    while backend.capture_next(engine.cache):
        pass
    return plain, graphed


def made(g, options, seed, prompt):
    given = {"steps": 4, "canvas_length": CANVAS, "max_new_tokens": 16, **options}
    return g.request(prompt, seed=seed, **given)


def outcomes(g, requests, joining=lambda step: 4):
    """Return the events of each request. At most `joining(step)` of them join before a step."""
    waiting, seen, step = list(enumerate(requests)), [[] for _ in requests], 0
    ids = {}
    while waiting or g.engine.busy:
        for _ in range(joining(step)):
            if waiting:
                number, request = waiting.pop(0)
                ids[g.engine.submit(request)] = number
        for event in g.engine.step():
            number = ids[event.request_id]
            if isinstance(event, Draft):
                seen[number].append((event.tokens, event.canvas.tokens_C.tolist(), event.final_tokens))
            elif isinstance(event, Done):
                usage = event.result.usage
                seen[number].append((event.result.tokens, event.result.finish_reason, usage.denoising_steps))
            elif isinstance(event, Failed):
                raise event.error
        step += 1
    return seen


@pytest.mark.parametrize("options", [*FAMILY, *OTHERS], ids=lambda options: " ".join(options) or "default")
def test_requests_with_any_settings_get_the_same_texts_from_packed_passes(served, options):
    plain, graphed = served
    requests = [
        [made(g, options, seed, prompt) for seed, prompt in ((0, "def fib(n):"), (2**63 + 5, "x"))] for g in served
    ]
    assert outcomes(graphed, requests[1]) == outcomes(plain, requests[0])


def test_requests_that_join_and_leave_capture_nothing_and_keep_their_texts(served):
    plain, graphed = served
    backend = graphed.engine.runner.backend
    chosen = random.Random(1)
    mixture = [*FAMILY, *OTHERS] * 2
    chosen.shuffle(mixture)
    prompts = [range(100, 100 + chosen.randint(1, 90)) for _ in mixture]
    requests = [
        [made(g, options, seed, prompt) for seed, (options, prompt) in enumerate(zip(mixture, prompts, strict=True))]
        for g in served
    ]
    joins = [chosen.randint(0, 2) for _ in range(5000)]
    before = backend.counts.captures
    found = outcomes(graphed, requests[1], joins.__getitem__)
    assert backend.counts.captures == before and not backend.graphs.made and not backend.graphs.packed.left
    assert found == outcomes(plain, requests[0], lambda step: len(mixture))

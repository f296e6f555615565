"""The 26B shape in fp8: structured output and infill over its whole vocabulary, and the same text in a batch.

The weights are random and the tokenizer is that of gesso-mini, so most ids of the vocabulary have no text.
"""

import json
from dataclasses import replace

import pytest
import torch

import gesso
from gesso.backends.cuda import CudaBackend
from gesso.engine.engine import Engine
from tests.backends.passes import CapturesPlainly
from tests.engine_requests import finish
from tests.gpu.device import BIG, DEVICE, DRY_RUN, DTYPE

pytestmark = pytest.mark.gpu

BRIEF = {"canvas_length": 64, "steps": 4, "max_new_tokens": 64, "seed": 1}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "maximum": 999}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def big():
    return gesso.load(BIG, device=DEVICE, dtype=DTYPE, quantize="fp8", max_length=8192)


def test_same_seed_same_text_alone_and_in_a_batch(big):
    alone = [big.generate(f"{seed}: ", **BRIEF | {"seed": seed}).tokens for seed in range(4)]
    requests = [big.request(f"{seed}: ", **BRIEF | {"seed": seed}) for seed in range(4)]
    long = big.request("x = 1\n" * 400, **BRIEF)
    assert [result.tokens for result in big.run([long, *requests])[1:]] == alone


def test_a_constraint_gives_the_same_text_captured_and_not(big):
    """Three constrained requests beside a free one. Passes of a shape are captured when it is seen again."""
    texts = []
    for captured in (True, False):
        backend = CapturesPlainly(big.model) if DRY_RUN else CudaBackend(big.model)
        engine = Engine(big.model, big.decode, max_batch=4, backend=backend)
        backend.graphs.can_capture = captured
        for _ in range(2):
            free = big.request("x", **BRIEF | {"seed": 9})
            made = [big.request("x", json_schema=SCHEMA, **BRIEF | {"seed": seed}) for seed in range(3)]
            events = finish(engine, *(engine.submit(each) for each in [*made, free]))
            texts.append([of_one[-1].result.tokens for of_one in events])
        assert bool(backend.graphs.packed) is captured
    assert all(each == texts[0] for each in texts)
    assert all(set(json.loads(big.decode(tokens))) == {"name", "size"} for tokens in texts[0][:3])


@pytest.mark.skipif(DRY_RUN, reason="a CPU queues nothing")
def test_at_most_two_passes_over_a_long_prompt_are_queued(big):
    """Otherwise a request that arrives meanwhile waits for the whole prompt."""
    engine = Engine(big.model, big.decode, max_batch=1, max_length=2**15)
    engine.submit(replace(big.request("x", **BRIEF), prompt=tuple(range(3, 30_003))))
    ends: list[torch.cuda.Event] = []
    while not engine.step():
        ends.append(torch.cuda.Event())
        ends[-1].record()
        assert all(end.query() for end in ends[:-2])
    assert len(ends) > 10


def test_pinned_infill(big):
    found = big.infill("def f(a):\n", "\n    return a", method="pinned", lengths=[2, 4], **BRIEF)
    assert found.method == "pinned" and [candidate.length for candidate in found.candidates] == [2, 4]


def test_logprobs(big):
    events = list(big.stream("x", top_logprobs=3, draft_logprobs=2, **BRIEF))
    likely = [entry for event in events if event.kind == "commit" for entry in event.likely]
    assert all(len(entry.top) == 3 and entry.top[0][1] <= 0 for entry in likely)
    assert all(len(event.likely) == 64 for event in events if event.kind == "draft")

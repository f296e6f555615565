"""The captured passes of a server: few shapes, whatever the requests, and the same texts as without them.

Without a GPU nothing is captured, but the tensors with fixed addresses, and the copies into and out of them, are the
same. `tests/gpu/test_real_width.py` captures.
"""

import random
from types import SimpleNamespace

import pytest

from examples.samplers import rules
from gesso import Done, Draft
from gesso.backends.cuda.canvases import takes_step
from gesso.backends.cuda.pass_sizes import Expected, PassSize
from gesso.engine.events import Failed
from gesso.engine.request import Score
from gesso.settings import BY_TOKEN, SETTINGS, Diffusion, choose

CANVAS = 8
FAMILY = (
    {},
    {"settle": 0, "confidence": 0.5},
    {"steps": 3, "t_max": 0.3, "t_min": 0.1, "entropy_bound": 2.0},
    {"settle": 1, "confidence": 0.5},
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
    {"sampler": rules.ConfidenceThreshold(), "greed": 0.5},
    {"sampler": rules.Ancestral(), "stopping": "fixed"},
    {"sampler": rules.Credit(), "stopping": rules.GapSchedule(), "settle": 1, "confidence": 5.0},
    {"sampler": rules.InformedCorrector(), "entropy_bound": 20.0},
    {"stopping": rules.TopTwoGap(), "t_max": 0.5, "t_min": 0.1},
    {"stability": 3, "confidence": 10.0},
    {"stopping": rules.Plateau()},
)


@pytest.fixture
def served(pair):
    """Return the tiny model twice: without graphs, and with all the passes of a server captured."""
    plain, graphed = pair
    backend, engine = graphed.engine.runner.backend, graphed.engine
    backend.expect(4, CANVAS, engine.scheduler.prefill)  # shorter canvases than the checkpoint's
    backend.compile_expected(engine.cache)
    while engine.captures_left:
        engine.capture_next()
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


def test_requests_that_join_and_leave_capture_nothing_and_keep_their_texts(served):
    plain, graphed = served
    backend, chosen = graphed.engine.runner.backend, random.Random(1)
    mixture = [*FAMILY, *OTHERS]
    chosen.shuffle(mixture)
    prompts = [range(100, 100 + chosen.randint(1, 60)) for _ in mixture]
    requests = [
        [made(g, options, seed, prompt) for seed, (options, prompt) in enumerate(zip(mixture, prompts, strict=True))]
        for g in served
    ]
    joins, before = chosen.choices((0, 0, 1, 2), k=5000), backend.counts.captures
    found = outcomes(graphed, requests[1], joins.__getitem__)
    assert backend.counts.captures == before and not backend.graphs.token_passes and not backend.graphs.left
    expected = outcomes(plain, requests[0], lambda step: len(mixture))
    differing = [options for options, *pair in zip(mixture, found, expected, strict=True) if pair[0] != pair[1]]
    assert not differing


# For each setting a change, and the other settings under which it makes a difference to this model.
CERTAIN = {"confidence": 10.0, "stability": 0}  # every canvas converges after one step
CHANGES = {
    "write": ({"write": "tokens", **BY_TOKEN["tokens"]}, {}),
    "steps": ({"steps": 2}, {"stopping": "fixed"}),
    "entropy_bound": ({"entropy_bound": 8.0}, {}),
    "t_max": ({"t_max": 9.0}, {}),
    "t_min": ({"t_min": 0.8}, {}),
    "stability": ({"stability": 2}, CERTAIN),
    "confidence": ({"confidence": 10.0}, {"stability": 0}),
    "greed": ({"greed": 1.0}, {"t_max": 9.0, "t_min": 9.0}),
    "top_k": ({"top_k": 1}, {"t_max": 9.0, "t_min": 9.0}),
    "top_p": ({"top_p": 0.01}, {"t_max": 9.0, "t_min": 9.0}),
    "min_p": ({"min_p": 1.0}, {"t_max": 9.0, "t_min": 9.0}),
    "sampler": ({"sampler": rules.ConfidenceThreshold()}, {}),
    "stopping": ({"stopping": "fixed"}, CERTAIN),
    "canvas_length": ({"canvas_length": 4}, {}),
    # A pinned end of text: nothing is left to judge.
    "eos_settles": ({"eos_settles": True}, {"pins": {0: 200, 1: 1}, "stability": 0}),
    "settle": ({"settle": 1}, {"settle": 0, "confidence": 10.0, "stopping": "fixed"}),
}


def test_every_setting_takes_effect_in_packed_passes(served):
    """The other request of the batch keeps the usual value. A setting that the slots ignore fails here."""

    def found(g, setting, changed):
        change, others = CHANGES[setting]
        shared = {"max_new_tokens": CANVAS, **others}
        return outcomes(g, [made(g, shared | (change if changed else {}), 1, "one two"), made(g, shared, 2, "one two")])

    plain, graphed = served
    expected = {setting: found(plain, setting, changed=True) for setting in SETTINGS}
    idle = [setting for setting in SETTINGS if found(plain, setting, changed=False)[0] == expected[setting][0]]
    assert idle == [], "these changes should change the outcome"
    assert [setting for setting in SETTINGS if found(graphed, setting, changed=True) != expected[setting]] == []


def test_packed_passes_take_the_steps_of_canvases_only():
    def taken(settings):
        process = SimpleNamespace(settings=settings, eos=frozenset({1}))
        return takes_step(SimpleNamespace(process=process, canvas=SimpleNamespace(tokens_C=range(8))))

    assert taken(Diffusion()) and taken(Diffusion(settle=0))
    assert not any(taken(choose(Diffusion(), write=write)) for write in BY_TOKEN)


def test_scored_texts_share_packed_passes_with_canvases(served):
    score = Score(prompt=tuple(range(100, 120)), texts=(tuple(range(150, 190)), (7, 8)))
    found = []
    for g in served:
        ids = [g.engine.submit(made(g, {}, 1, "x y")), g.engine.submit(score)]
        events = []
        while g.engine.busy:
            events += g.engine.step()
        found += [event.log_likelihoods for event in events if event.kind == "scored" and event.request_id == ids[1]]
    assert len(found) == 2 and found[1] == pytest.approx(found[0], abs=1e-4)
    assert not served[1].engine.runner.backend.graphs.token_passes


def test_a_resumed_draft_takes_the_seed_of_its_own_request(served):
    """Its canvas may still be in a slot, with the numbers of the request that made it."""
    texts = []
    for g in served:
        options = {"steps": 6, "canvas_length": CANVAS, "max_new_tokens": CANVAS, "stopping": "fixed"}
        stream = g.stream("x y", seed=5, **options)
        draft = next(event for event in stream if isinstance(event, Draft) and event.canvas.step == 3)
        stream.close()
        texts.append(g.generate("x y", resume=draft, seed=6, **{**options, "t_max": 2.0, "t_min": 2.0}).tokens)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("batch", [1, 8, 12, 32])
def test_a_server_needs_few_passes_and_whole_canvases_little_padding(batch):
    expected = Expected(batch, 256, 2048)
    found = expected.sizes()
    assert len(found) == len(set(found)) <= 70 and found[0] == PassSize(batch * 256, 256, any_canvases=True)
    assert max(each.texts for each in found) == 2048 + batch * 256, "prompts, and a committed canvas of each request"
    for beside, any_canvases in ((0, False), (0, True), (256, True)):
        kind = beside, any_canvases
        sizes = [each.canvases for each in found if (each.texts, each.any_canvases) == kind and each.canvases]
        for count in range(1, batch + 1):
            padded = min(size for size in sizes if size >= count * 256) - count * 256
            assert padded == 0 if count <= 8 else padded < 0.2 * count * 256

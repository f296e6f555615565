"""Requests to an engine with the tiny model, and their results. GPU tests use them: they need only gesso and torch."""

from dataclasses import replace

from examples.samplers import rules
from gesso import Done
from gesso.engine.events import Failed
from gesso.engine.request import Request
from gesso.settings import Diffusion

SMALL = Diffusion(canvas_length=16, steps=6, entropy_bound=2.0, confidence=0.5)
PROMPT = (2, 200, 210, 220)


def request(**changes):
    return Request(**{"prompt": PROMPT, "max_new_tokens": 40, "diffusion": SMALL, "seed": 5} | changes)


def finish(engine, *ids):
    """Step until the given requests are done. Return all events of each, in order."""
    events = {i: [] for i in ids}
    while not all(events[i] and isinstance(events[i][-1], Done) for i in ids):
        for event in engine.step():
            if event.request_id in events:
                if isinstance(event, Failed):
                    raise event.error
                events[event.request_id].append(event)
    return [events[i] for i in ids]


def result(engine, wanted):
    return finish(engine, engine.submit(wanted))[0][-1].result


def other_requests():
    """Return seven requests: other prompts, lengths, canvases, samplers and seeds; one prompt exceeds the window."""
    return [
        request(prompt=PROMPT * 3, seed=11, max_new_tokens=48),
        request(prompt=(2,), seed=12, max_new_tokens=7),
        request(prompt=tuple(range(128, 328)), seed=13, diffusion=replace(SMALL, sampler=rules.Argmax())),
        request(seed=14, diffusion=replace(SMALL, sampler=rules.Ancestral(), canvas_length=9)),
        request(seed=15, diffusion=replace(SMALL, canvas_length=33, steps=4)),
        request(seed=16, pins={0: 140, 17: 141}),
        request(prompt=PROMPT[:2], seed=17, diffusion=replace(SMALL, sampler=rules.Ddim(), stopping="fixed")),
    ]

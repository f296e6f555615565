"""The engine process of a server, without the process."""

from gesso.engine.engine import Engine
from gesso.serve.worker import warm_up
from tests.backends.passes import CapturesPlainly


def test_warm_up_captures_the_text_of_prompts_of_any_length(tiny):
    backend = CapturesPlainly(tiny.model)
    engine = Engine(tiny.model, tiny.decode, max_batch=2, prefill=512, backend=backend)
    warm_up(engine, 2)
    captured = {shape.pieces for shape, graph in backend.graphs.seen.items() if graph}
    assert {((size, "text"),) for size in (16, 32, 64, 128, 256)} <= captured
    assert not engine.running

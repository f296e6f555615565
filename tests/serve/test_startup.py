"""The engine process of a server, without the process."""

from gesso.backends.cuda.graphs import room_for
from gesso.engine.engine import Engine
from gesso.serve.startup import warm_up
from tests.backends.passes import CapturesPlainly


def test_warm_up_captures_the_text_of_prompts_of_any_length(tiny):
    backend = CapturesPlainly(tiny.model)
    engine = Engine(tiny.model, tiny.decode, max_batch=2, prefill=512, backend=backend)
    warm_up(engine, 2)
    rooms = {shape.room for shape in backend.graphs.made if not shape.pieces}
    assert {room_for(length) for length in range(1, 257)} <= rooms
    assert not engine.running

"""The start of an engine process, and its idle time, without the process."""

import queue
import threading

import pytest

import gesso
from gesso.api import Gesso
from gesso.backends.torch import TorchBackend
from gesso.engine import guided
from gesso.engine.driver import Driver
from gesso.engine.engine import Engine
from gesso.serve import startup
from gesso.serve.metrics import Metrics
from gesso.serve.settings import EngineSettings
from gesso.serve.wire import Heartbeat, Loading
from gesso.serve.worker import Worker
from gesso.settings import BY_TOKEN, Diffusion
from tests.backends.passes import CapturesPlainly
from tests.engine_requests import finish, other_requests, request, result
from tests.tiny import make
from tests.waiting import PATIENCE, wait_until


class Idle(Worker):
    """A worker that is idle as soon as no message waits."""

    idle_seconds = 0.0


class Seeing(TorchBackend):
    """A backend that notes the sizes of the images that it reads."""

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def see(self, image):
        self.seen.append(image.tokens)
        return super().see(image)


@pytest.fixture
def engine(tiny):
    return Engine(tiny.model, tiny.decode, max_batch=2, prefill=512, backend=CapturesPlainly(tiny.model))


def test_after_the_warm_up_no_request_waits_for_a_capture(tiny, engine):
    startup.warm_up(engine, 2)
    while engine.captures_left:  # what a busy machine could not capture in time is left for an idle engine
        engine.capture_next()
    backend = engine.runner.backend
    before, expected = backend.counts.captures, [result(Engine(tiny.model, tiny.decode), each) for each in mixed()]
    assert before and not engine.captures_left and not engine.running
    found = finish(engine, *map(engine.submit, mixed()))
    assert [events[-1].result.tokens for events in found] == [each.tokens for each in expected]
    assert backend.counts.captures == before and not backend.graphs.token_passes


def mixed():
    return [*other_requests(), *(request(seed=seed, max_new_tokens=20 + seed) for seed in range(3))]


def test_passes_that_are_not_captured_in_time_are_captured_when_the_engine_is_idle(tiny, engine, monkeypatch):
    monkeypatch.setattr(startup, "CAPTURE_SECONDS", 1e-9)  # one pass
    startup.warm_up(engine, 2)
    assert engine.captures_left
    model = Gesso(tiny.model, tiny.tokenizer, tiny.defaults, tiny.directory, max_batch=2, max_length=None)
    model.engine, model.driver = engine, Driver(engine)
    beats, taken = [], []
    idle = Idle(model, beats.append)
    idle.inbox = queue.SimpleQueue()
    waiting = threading.Thread(target=lambda: taken.append(idle.next_message()))
    waiting.start()
    wait_until(lambda: not engine.captures_left)
    idle.inbox.put(message := Heartbeat())
    waiting.join(PATIENCE)
    assert taken == [message]
    assert beats[-1].captures == engine.runner.backend.counts.captures


def test_the_warm_up_corrects_a_draft_under_a_constraint(tiny, engine, monkeypatch):
    """A server must not load the kernels of a correction while others wait."""
    found, searching = [], guided.Correction.search
    monkeypatch.setattr(guided.Correction, "search", lambda self: found.append(self) or searching(self))
    startup.warm_up(engine, 2, guide=tiny.guides.guide(regex=startup.WARM_UP_REGEX))
    assert found and not engine.running


def test_an_engine_builds_the_tables_of_searches_before_it_is_ready(tiny_directory):
    settings = EngineSettings(model=str(tiny_directory), device="cpu", max_batch=1, max_length=64)
    model, _ = startup.start(settings, lambda message: None)
    built = {"bytes_VL", "length_V", "plain_V"}
    assert all(built <= vars(words).keys() for words in (model.guides.words, model.guides._words_and_tags))


def test_the_warm_up_reads_the_largest_image(tmp_path):
    seeing = gesso.load(make(tmp_path / "seeing", sees=True))
    for length, tokens in ((8192, 25), (23, 20), (4, 1)):  # the table of positions has 16 rows and columns
        engine = Engine(seeing.model, seeing.decode, max_length=length, backend=Seeing(seeing.model))
        startup._read_image(engine)
        assert engine.runner.backend.seen == [tokens]
        assert not engine.running and not engine.runner.seen.held


def test_work_without_a_captured_pass_of_its_size_is_served_by_a_larger_one(engine):
    backend, canvas = engine.runner.backend, engine.model.config.canvas_length
    backend.compile_expected(engine.cache)
    engine.capture_next()
    graphs = backend.graphs
    for size in [each for each in graphs.left if each.canvases in (0, 2 * canvas)]:
        graphs.capture(size, engine.cache)
    before = backend.counts.captures
    result(engine, request(seed=1, max_new_tokens=20))
    assert backend.counts.captures == before


def test_a_server_that_writes_token_by_token_captures_these_passes_at_the_start(engine):
    startup.warm_up(engine, 2, write="tokens")
    backend = engine.runner.backend
    before = backend.counts.captures
    assert {len(shape.pieces) for shape in backend.graphs.token_passes} == {1, 2}
    diffusion = Diffusion(write="tokens", **BY_TOKEN["tokens"])
    finish(engine, *(engine.submit(request(seed=seed, diffusion=diffusion, max_new_tokens=5)) for seed in range(2)))
    assert backend.counts.captures == before


def test_the_weights_are_reported_as_loaded_before_the_warm_up(tiny_directory):
    sent = []
    startup.start(EngineSettings(model=str(tiny_directory), device="cpu", max_batch=1), sent.append)
    assert sent[-1] == Loading(1.0)


def test_in_python_a_pass_is_captured_when_it_is_needed_again(tiny):
    engine = Engine(tiny.model, tiny.decode, backend=CapturesPlainly(tiny.model))
    before = engine.runner.backend.counts.captures
    first = result(engine, request(seed=1, max_new_tokens=1, diffusion=Diffusion(steps=1)))
    assert engine.runner.backend.counts.captures == before
    again = result(engine, request(seed=1, max_new_tokens=1, diffusion=Diffusion(steps=1)))
    assert engine.runner.backend.counts.captures > before and again.tokens == first.tokens


def test_metrics_count_the_captures_of_all_engines():
    metrics = Metrics()

    def count():
        lines = metrics.render().decode().splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith("gesso_engine_captures_total{")]

    assert count() == []
    for captures in (3, 3, 5, 2):  # the last by a new engine
        metrics.record("m", Heartbeat(captures=captures))
    assert count() == [7.0]

"""Clients that disconnect at any time, or stop reading, leave no slot, object or connection behind."""

import asyncio
import gc
import itertools
import os
import random
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gesso.diffusion.canvas import Canvas
from gesso.engine.request import Request
from gesso.engine.running import Running
from gesso.model.cache import KVCache
from gesso.model.config import Config
from gesso.serve.generation import Generation
from gesso.serve.jobs import AnswerJob, Mailbox
from gesso.serve.openai import completions
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.serve.wire import Cancel
from gesso.serve.worker import Worker
from tests.serve.submitting import submit
from tests.serving import raw, within
from tests.waiting import wait_until
from tools.load import hangups

ENDLESS = {"steps": 1000, "stopping": "fixed", "canvas_length": 256}


@pytest.fixture(scope="module")
def server(served_model):
    engine = EngineSettings(model=str(served_model), device="cpu", max_batch=4, prefill=256)
    with within(ServerSettings(engine=engine, limits=ServerLimits(io_timeout=2))) as running:
        yield running


def alive(*kinds):
    gc.collect()
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds)


def test_disconnecting_clients_leave_nothing_behind_and_affect_no_others(server):
    found = hangups.measure(server.url, visitors=20)
    assert found["error_count"] == 0 and found["same_text_as_alone"] and found["answers_meanwhile"] >= 4
    statuses, visitors = found["statuses"], found["visitors"]
    assert set(statuses) == {"200", "499"}
    streamed = sum(visitors.get(kind, 0) for kind in ("stream", "drafts, read slowly", "long prompt, streamed"))
    assert statuses["499"] + streamed > 13  # no other client was rejected
    assert set(found["left_behind"].values()) == {0}
    before, after = found["before"], found["after"]
    config = Config.from_directory(Path(server.app.state.supervisor.settings.model))
    row = KVCache(config, 1, config.max_position_embeddings, torch.device("meta"), torch.float32)
    row.save(0, 0)
    assert after["gesso_engine_cache_bytes"] <= 4 * row.nbytes  # rows keep their size, and no row is lost
    grown = after["gesso_engine_cache_bytes"] - before["gesso_engine_cache_bytes"]
    assert after["gesso_engine_memory_bytes"] < before["gesso_engine_memory_bytes"] + grown + 32e6
    assert after["process_open_fds"] <= before["process_open_fds"]
    wait_until(lambda: not alive(AnswerJob, Generation, Mailbox))


def test_a_client_that_stops_reading_is_disconnected(server):
    """The client keeps its end open, so only the server's timeout ends the connection."""
    body = {"prompt": "x", "max_tokens": 2000, "n": 4, "stream": True, "diffusion": ENDLESS | {"drafts": True}}
    connections = len(os.listdir("/proc/self/fd"))
    with raw(server.url, body, receive_buffer=2048):
        wait_until(lambda: server.app.state.supervisor.running)
        wait_until(lambda: not server.app.state.supervisor.running)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= connections + 1)


def test_a_stream_closed_before_its_first_event_cancels_its_jobs(server, monkeypatch):
    async def head_only(model, generation):
        yield b": head\n\n"
        await asyncio.sleep(3600)

    monkeypatch.setattr(completions, "stream", head_only)
    supervisor = server.app.state.supervisor
    with raw(server.url, {"prompt": "x", "max_tokens": 2000, "stream": True, "diffusion": ENDLESS}):
        wait_until(lambda: supervisor.running)
    wait_until(lambda: not supervisor.running)


def test_the_engine_keeps_no_object_of_cancelled_requests(tiny):
    """Cancel endless requests at any step, even during prefill, beside one that ends by itself."""
    before, chance, sent, steps = alive(Running, Request, Canvas), random.Random(0), [], itertools.count()
    options = {"steps": 6, "canvas_length": 16, "settle": 1}
    endless = options | {"steps": 1000, "stopping": "fixed"}
    prompts = [[2, *chance.choices(range(128, 384), k=chance.choice((3, 900)))] for _ in range(30)]
    asked = [
        submit(tiny, id, prompt, seed=id, max_new_tokens=64, **(endless if id else options))
        for id, prompt in enumerate(prompts)
    ]
    waiting = deque([asked[0], *(message for one in asked[1:] for message in (one, Cancel(one.id)))])

    def take():
        if not waiting:
            raise EOFError
        return waiting.popleft()

    def empty():
        """Report randomly whether a message is waiting, so that cancels arrive at any step of a request."""
        assert next(steps) < 500
        return not waiting or chance.random() < 0.6

    worker = Worker(tiny, sent.append)
    with pytest.raises(EOFError):
        worker.run(SimpleNamespace(empty=empty, get=take, put=None))
    assert not worker.jobs and not worker.driver.runs
    sent.clear()
    del worker
    assert alive(Running, Request, Canvas) == before

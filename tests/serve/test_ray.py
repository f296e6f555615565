"""Replicas on a local Ray cluster. The tests run only if Ray is installed (pip install '.[ray]'), which is large."""

import os
import signal
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gesso.errors import CheckpointError, InputError
from gesso.serve.settings import EngineSettings, Limits, ServerSettings
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    from gesso.serve.ray import Cluster, deploy

BATCH = 2
QUICK = {"steps": 12, "stopping": "fixed", "canvas_length": 16}
SEEDS = 8


@pytest.fixture(scope="module")
def settings(served_model):
    engine = EngineSettings(model=str(served_model), device="cpu", max_batch=BATCH, max_length=600)
    return ServerSettings(engine=engine, limits=Limits(drain=20), name="tiny")


@pytest.fixture(scope="module")
def url(settings):
    """Two replicas on a cluster of this machine."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        message = deploy(settings, "127.0.0.1", 18_417, Cluster(least=2, most=2, cpus=0.5))
        yield message.split()[3]
    finally:
        ray.shutdown()


def replicas():
    """Return the process ids of this cluster's replicas."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                title = (process / "cmdline").read_text()
            except OSError:
                continue
            if title.startswith("ray::ServeReplica:gesso:"):
                found.append(int(process.name))
    return found


class Load:
    """Clients that send requests continuously, and the outcome of each request."""

    def __init__(self, url, clients):
        self.url, self.stop = url, threading.Event()
        self.texts, self.failed = {}, []
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def ask(self, number):
        while not self.stop.is_set():
            status, text = ask(self.url, number % SEEDS)
            if status == 200:
                self.texts.setdefault(number % SEEDS, []).append(text)
            else:
                self.failed.append((status, text))
            number += 1

    @property
    def answered(self):
        return sum(map(len, self.texts.values()))

    def wait(self, more):
        wanted = self.answered + more
        wait_until(lambda: self.answered >= wanted)


def ask(url, seed):
    body = {"prompt": "Hello", "max_tokens": 16, "seed": seed, "diffusion": QUICK}
    try:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    except httpx.HTTPError as error:
        return 0, str(error)
    return answer.status_code, answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.text


def test_a_killed_replica_loses_only_its_running_requests(url):
    alone = {seed: {ask(url, seed)[1]} for seed in range(SEEDS)}
    before = replicas()
    assert len(before) == 2
    with Load(url, clients=12) as load:
        load.wait(20)
        os.kill(before[0], signal.SIGKILL)
        load.wait(40)
    assert len(load.failed) <= BATCH, load.failed
    assert {seed: set(texts) for seed, texts in load.texts.items()} == alone
    wait_until(lambda: len(replicas()) >= 2 and before[0] not in replicas())


def test_deploying_again_replaces_replicas_without_failed_requests(url, settings):
    before = replicas()
    again = replace(settings, name="renamed", strict=True)
    with Load(url, clients=6) as load:
        load.wait(10)
        deploy(again, "127.0.0.1", 18_417, Cluster(least=2, most=2, cpus=0.5))
        load.wait(20)
    assert load.failed == []
    assert not set(before) & set(replicas())


def test_replicas_that_cannot_load_report_the_reason(settings, url):
    broken = replace(settings, engine=replace(settings.engine, memory=1e-6))
    with pytest.raises(CheckpointError, match="did not start.*does not fit"):
        deploy(broken, "127.0.0.1", 18_417, Cluster())


def test_replicas_must_be_a_range():
    for least, most in ((0, 1), (3, 2)):
        with pytest.raises(InputError, match="replicas"):
            Cluster(least=least, most=most)

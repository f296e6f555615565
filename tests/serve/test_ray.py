"""Replicas on a Ray cluster of this machine: `make test-ray`, which installs Ray."""

import os
import signal
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gesso.checkpoint.aliases import CheckpointChoice
from gesso.errors import CheckpointError, InputError
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from tests import loras
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # the warnings are Ray's
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray", reason="run by make test-ray")
    from gesso.serve.ray import Cluster, deploy, on_this_machine

BATCH = 2
QUICK = {"steps": 12, "stopping": "fixed", "canvas_length": 16}
SEEDS = 8
PORT = 18_417
ENOUGH = 24  # requests that reach both replicas, but for one chance in millions


@pytest.fixture(scope="module")
def adapters(served_model, tmp_path_factory):
    return loras.write(served_model, tmp_path_factory.mktemp("adapters"), "abc")


@pytest.fixture(scope="module")
def settings(served_model, adapters):
    engine = EngineSettings(
        model=str(served_model), adapters={"a": str(adapters["a"])}, device="cpu", max_batch=BATCH, max_length=600
    )
    root = str(adapters["a"].parent.resolve())
    return ServerSettings(engine=engine, limits=ServerLimits(drain=20), name="tiny", adapter_dir=root)


@pytest.fixture(scope="module")
def url(settings):
    """Two replicas on a cluster of this machine."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        message = deploy(settings, "127.0.0.1", PORT, Cluster(least=2, most=2, cpus=0.5))
        yield message.split()[3]
    finally:
        ray.shutdown()


def replicas(deployment="replica"):
    """Return the process ids of the replicas of a deployment on this cluster."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                title = (process / "cmdline").read_text()
            except OSError:
                continue
            if title.startswith(f"ray::ServeReplica:gesso:{deployment}"):
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


def ask(url, seed, **more):
    body = {"prompt": "Hello", "max_tokens": 16, "seed": seed, "diffusion": QUICK} | more
    try:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    except httpx.HTTPError as error:
        return 0, str(error)
    return answer.status_code, answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.text


def change(url, verb, name, **more):
    return httpx.post(f"{url}/v1/{verb}_lora_adapter", json={"lora_name": name} | more, timeout=PATIENCE)


def answers(url, model):
    """Return the different answers of both replicas."""
    return {ask(url, 1, model=model) for _ in range(ENOUGH)}


def statuses(url, model):
    return {status for status, _ in answers(url, model)}


def listed(url):
    """Return the different lists of models that both replicas have."""
    data = [httpx.get(f"{url}/v1/models", timeout=PATIENCE).json()["data"] for _ in range(ENOUGH)]
    return {tuple(model["id"] for model in models) for models in data}


def test_adapters_are_loaded_and_unloaded_on_every_replica(url):
    loaded = change(url, "load", "b", lora_path="b")
    assert (loaded.status_code, loaded.json()["id"]) == (200, "b")
    assert listed(url) == {("tiny", "a", "b")}
    texts = {name: answers(url, name) for name in ("tiny", "a", "b")}
    assert {status for each in texts.values() for status, _ in each} == {200}
    assert len(set.union(*texts.values())) == 3, "one text per adapter, whichever replica writes it"
    for wrong, path, code in (("b", "c", "adapter_exists"), ("d", "d", "adapter_not_found")):
        answer = change(url, "load", wrong, lora_path=path)
        assert answer.json()["error"]["code"] == code, answer.text
    for name in ("a", "b"):
        assert change(url, "unload", name).status_code == 200
        assert statuses(url, name) == {404}
    assert change(url, "unload", "b").status_code == 404
    assert change(url, "load", "a", lora_path="a").status_code == 200
    assert answers(url, "a") == texts["a"] and listed(url) == {("tiny", "a")}


def test_a_new_replica_has_the_loaded_adapters_before_it_gets_requests(url):
    assert change(url, "load", "b", lora_path="b").status_code == 200
    expected, before = answers(url, "b"), replicas()
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(replicas()) == 2 and before[0] not in replicas())
    wait_until(lambda: answers(url, "b") == expected)  # requests of the killed replica may have failed
    assert change(url, "load", "c", lora_path="c").status_code == 200
    assert statuses(url, "c") == {200}
    for name in ("b", "c"):
        assert change(url, "unload", name).status_code == 200


def test_loaded_adapters_survive_the_board(url):
    assert change(url, "load", "b", lora_path="b").status_code == 200
    (board,) = replicas("adapters-")
    os.kill(board, signal.SIGKILL)
    wait_until(lambda: replicas("adapters-") not in ([], [board]))
    wait_until(lambda: change(url, "load", "c", lora_path="c").status_code == 200)
    assert listed(url) == {("tiny", "a", "b", "c")}
    for name in ("b", "c"):
        assert change(url, "unload", name).status_code == 200


def test_responses_are_not_stored(url):
    body = {"input": "Hello", "max_output_tokens": 8, "store": True, "diffusion": QUICK}
    first = httpx.post(f"{url}/v1/responses", json=body, timeout=PATIENCE).json()
    assert first["store"] is False
    again = httpx.post(f"{url}/v1/responses", json=body | {"previous_response_id": first["id"]}, timeout=PATIENCE)
    assert again.status_code == 404 and "stores no responses" in again.json()["error"]["message"]


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
        deploy(again, "127.0.0.1", PORT, Cluster(least=2, most=2, cpus=0.5))
        load.wait(20)
    assert load.failed == []
    assert not set(before) & set(replicas())
    assert listed(url) == {("renamed", "a")}


def test_replicas_that_cannot_load_report_the_reason(settings, url):
    broken = replace(settings, engine=replace(settings.engine, memory=1e-6))
    with pytest.raises(CheckpointError, match="did not start.*does not fit"):
        deploy(broken, "127.0.0.1", PORT, Cluster())


def test_the_alias_is_resolved_by_each_replica(settings, url, monkeypatch):
    alias = replace(settings.engine, model="diffusiongemma", adapters={}, memory="1GB")
    with pytest.raises(CheckpointError, match="did not start.*no GPU; .* 1.0 GB of host memory may be used"):
        deploy(replace(settings, engine=alias), "127.0.0.1", PORT, Cluster())
    monkeypatch.setattr("gesso.serve.ray.choose_apart", lambda *_: CheckpointChoice("owner/model", "fp8", "it fits"))
    chosen = on_this_machine(replace(settings, engine=alias)).engine
    assert (chosen.model, chosen.quantize) == ("owner/model", "fp8")
    assert on_this_machine(settings) == settings


def test_replicas_must_be_a_range():
    for least, most in ((0, 1), (3, 2)):
        with pytest.raises(InputError, match="replicas"):
            Cluster(least=least, most=most)

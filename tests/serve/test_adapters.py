"""Adapters of a server: loaded and unloaded over HTTP while it answers requests, and present after a restart."""

import asyncio
import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.testclient import TestClient

import gesso
from gesso.adapters.files import CONFIG, WEIGHTS
from gesso.serve.adapter_files import find_adapter
from gesso.serve.adapters import ServedAdapters
from gesso.serve.errors import ApiError
from gesso.serve.http.app import create_app
from gesso.serve.metrics import Metrics
from gesso.serve.settings import ServerSettings
from gesso.serve.wire import AdapterFailed, AdapterLoaded, LoadAdapter, UnloadAdapter
from tests.likelihood import Likelihood
from tests.serving import QUICK
from tests.waiting import PATIENCE, wait_until

KEY = {"authorization": "Bearer one"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def directory(adapter_directory):
    return adapter_directory


@pytest.fixture(scope="module")
def expected(served_model, directory):
    """The answer to `ask` with each adapter, by a model that has no other."""
    options = {**QUICK, "max_new_tokens": 16, "seed": 1, "settle": 1}
    paths = {"tiny": None} | {name: directory / "inside" / name for name in "abc"}
    texts = {
        name: gesso.load(served_model, adapter=path).generate("Hello", **options).text for name, path in paths.items()
    }
    assert len(set(texts.values())) == 4
    return texts


@pytest.fixture
def server(server_with_keys):
    return server_with_keys


def ask(server, model, **more):
    body = {"model": model, "prompt": "Hello", "max_tokens": 16, "seed": 1, "diffusion": QUICK} | more
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE, headers=KEY)


def text(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def load(server, name, path):
    return server.http.post(LOAD, json={"lora_name": name, "lora_path": str(path)})


def unload(server, name):
    return server.http.post(UNLOAD, json={"lora_name": name})


def served(server):
    return [item["id"] for item in server.http.get("/v1/models").json()["data"]]


def test_adapters_are_loaded_and_unloaded_under_load_and_no_request_fails(server, expected):
    stop, answers = threading.Event(), []

    def keep_asking(model):
        while not stop.is_set():
            answers.append((model, ask(server, model)))

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(keep_asking, model) for model in ("tiny", "a")]
        try:
            for name, path in (("b", "b"), ("c", "./c/../c")):
                loaded = load(server, name, path)
                assert (loaded.status_code, loaded.json()) == (200, {"id": name, "object": "model", "parent": "tiny"})
                assert served(server)[-1] == name, "it is listed at once"
                assert text(ask(server, name)) == expected[name]
            for name in ("b", "c"):
                gone = unload(server, name)
                assert (gone.status_code, gone.json()["deleted"]) == (200, True)
                refused = ask(server, name)
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        finally:
            stop.set()
        for each in busy:
            each.result(PATIENCE)
    assert {(model, text(answer)) for model, answer in answers} == {(name, expected[name]) for name in ("tiny", "a")}
    assert served(server) == ["tiny", "a"]
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    noted = [(event["event"], event["adapter"]) for event in events if event["event"].startswith("adapter ")]
    assert noted == [("adapter loaded", "b"), ("adapter loaded", "c")] + [
        ("adapter unloaded", "b"),
        ("adapter unloaded", "c"),
    ]


def test_every_kind_of_request_runs_with_its_adapter(server, served_model, directory):
    """As in Python, with a model that has only this adapter."""
    alone, base = (gesso.load(served_model, adapter=path) for path in (directory / "inside" / "a", None))
    options, ours = {"seed": 1, "diffusion": QUICK}, {**QUICK, "seed": 1, "settle": 1}
    tokens = alone.tokenizer.encode("Hello")

    def answer(path, **fields):
        response = server.http.post(f"/v1/{path}", json={"model": "a"} | fields)
        assert response.status_code == 200, response.text
        return response.json()

    hole = {"prompt": "ab", "suffix": "ef", "max_tokens": 4, "best_of": 2}
    decision = {"prompt": "Hello", "choices": ["yes", "no"]}
    answers = [
        answer("completions", **hole, **options)["choices"][0]["text"],
        answer("edits", input="abcdef", span=[1, 3], max_tokens=4, **options)["choices"][0]["replacement"],
        {one["choice"]: one["probability"] for one in answer("decide", **decision)["probabilities"]},
        answer("completions", prompt="Hello", echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"],
    ]
    answers[3] = sum(answers[3]["token_logprobs"][1:])

    def by(model):
        return [
            model.infill("ab", "ef", max_new_tokens=4, candidates=2, **ours).text,
            model.edit("abcdef", (1, 3), max_new_tokens=4, **ours).replacement,
            pytest.approx(dict(model.decide("Hello", ["yes", "no"]).probabilities), rel=1e-3),
            pytest.approx(Likelihood(model.model, tokens[:1]).of(tokens[1:]), rel=1e-3),
        ]

    assert answers == by(alone)
    assert not any(one == other for one, other in zip(answers, by(base), strict=True))


def test_an_unloaded_adapter_serves_its_requests_to_the_end_and_its_name_is_then_free(server, expected, directory):
    assert load(server, "b", "b").status_code == 200
    body = {"model": "b", "prompt": "Hello", "max_tokens": 48, "seed": 1, "diffusion": QUICK}
    whole = text(server.http.post("/v1/completions", json=body))
    endless = server.events("/v1/completions", body | {"diffusion": {"steps": 1000, "drafts": True}})
    next(endless)
    events = server.events("/v1/completions", body | {"diffusion": QUICK | {"drafts": True}})
    first = next(events)
    assert unload(server, "b").status_code == 200
    assert served(server) == ["tiny", "a"] and ask(server, "b").status_code == unload(server, "b").status_code == 404
    assert "".join(choice["text"] for event in [first, *events] for choice in event.get("choices", ())) == whole
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(load, server, "b", "c")  # waits for the last request
        assert text(ask(server, "tiny")) == expected["tiny"] and not again.done()
        assert server.metric('gesso_adapter_requests{adapter="b",model="tiny"}') == 1
        endless.close()
        assert again.result(PATIENCE).status_code == 200
    assert text(ask(server, "b")) == expected["c"]
    unload(server, "b")
    assert server.metric("gesso_adapters") == 1


def test_adapters_survive_a_crash_of_the_engine_and_unloaded_ones_do_not_return(server, expected, directory):
    shutil.copytree(directory / "inside" / "c", directory / "inside" / "brief")
    for name, path in (("b", directory / "inside" / "b"), ("brief", "brief")):
        assert load(server, name, path).status_code == 200
    unload(server, "a")
    shutil.rmtree(directory / "inside" / "brief")
    os.kill(server.engine_pid(), signal.SIGKILL)
    server.wait_ready(503)
    assert text(ask(server, "b")) == expected["b"], "it waits for the engine and the adapter"
    wait_until(lambda: served(server) == ["tiny", "b"])  # the files of the other one are gone
    assert ask(server, "brief").status_code == 404 and text(ask(server, "tiny")) == expected["tiny"]
    assert load(server, "a", "a").status_code == 200 and text(ask(server, "a")) == expected["a"]
    unload(server, "b")
    assert server.http.get("/health").json()["engine"] == "ready"


def test_a_failed_load_changes_nothing(server, expected, directory):
    before, wrong = served(server), directory / "inside" / "wrong"
    restarts = server.metric("gesso_engine_restarts_total")

    def rejected(name, path, status, words):
        answer = load(server, name, path)
        error = answer.json()["error"]
        assert (answer.status_code, error.keys()) == (status, {"message", "type", "param", "code"}), error
        assert words in error["message"] and str(directory) not in error["message"]

    shutil.copytree(directory / "inside" / "a", wrong)
    config = json.loads((wrong / CONFIG).read_text())
    for change, words in (
        ({"r": 3}, "has shape"),
        ({"r": 10**6}, "rank"),
        ({"target_modules": ["nothing"]}, "nothing"),
    ):
        (wrong / CONFIG).write_text(json.dumps(config | change))
        rejected("wrong", "wrong", 400, words)
    (wrong / CONFIG).write_text(json.dumps(config))
    (wrong / WEIGHTS).write_bytes((wrong / WEIGHTS).read_bytes()[:-100])
    rejected("wrong", "wrong", 400, "corrupt or cut off")
    for name in ("a", "tiny"):
        rejected(name, "b", 400, "")
    for name in ("", "a.b", "../b", "x" * 101, "a b\n"):
        rejected(name, "b", 400, "lora_name")
    answer = server.http.post(LOAD, json={"lora_name": "b", "lora_path": "b", "load_inplace": True})
    assert answer.json()["error"]["code"] == "unknown_parameter"
    assert server.http.post(LOAD, json={"lora_name": "b"}).json()["error"]["param"] == "lora_path"
    for path in (LOAD, UNLOAD):
        assert httpx.post(server.url + path, json={"lora_name": "b", "lora_path": "b"}).status_code == 401
        assert server.http.post(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 400
    shutil.rmtree(wrong)
    assert served(server) == before and text(ask(server, "a")) == expected["a"]
    assert server.metric("gesso_engine_restarts_total") == restarts


def test_only_adapters_inside_the_directory_are_loaded(server, directory):
    inside = directory / "inside"
    (inside / "link").symlink_to(directory / "outside")
    (inside / "circle").symlink_to(inside / "circle")
    (inside / "files").mkdir()
    for name in (CONFIG, WEIGHTS):
        (inside / "files" / name).symlink_to(directory / "outside" / name)
    (directory / "links").mkdir()
    for name in (CONFIG, WEIGHTS):
        (directory / "links" / name).symlink_to(inside / "a" / name)
    (inside / "half").mkdir()
    shutil.copy(inside / "a" / CONFIG, inside / "half" / CONFIG)
    (inside / "alias").symlink_to(inside / "a")
    outside = [
        "../outside",
        str(directory / "outside"),
        "a/../../outside",
        "../links",
        "link",
        "files",
        "/etc",
        "/proc/self",
    ]
    impossible = ["missing", "circle", "half", "a/" + CONFIG, "x" * 300, "a\0b", "../inside-not/a", "~", "a/" * 2000]
    messages = set()
    for path in outside + impossible:
        with pytest.raises(ApiError) as error:
            find_adapter(str(inside), path)
        messages.add((error.value.status, error.value.message.replace(repr(path[:100]), "PATH")))
    assert len(messages) == 1, "a client cannot tell a file outside from none"
    assert (
        find_adapter(str(inside), "alias")
        == find_adapter(str(inside), str(inside / "a"))
        == str(inside.resolve() / "a")
    )
    answer = load(server, "escaped", "../outside")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "adapter_not_found")


def test_without_the_option_nothing_can_be_loaded(main, tmp_path):
    client = TestClient(create_app(ServerSettings()))
    for path in (LOAD, UNLOAD):
        answer = client.post(path, json={"lora_name": "a", "lora_path": "a"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
        assert "--adapter-dir" in answer.json()["error"]["message"]
    ended = main("serve", "--adapter-dir", str(tmp_path / "none"))
    assert ended.code and "there is no directory" in ended.err


# --- bookkeeping of the server ------------------------------------------------------------------------------------


def table(*given, most=3):
    sent = []
    return ServedAdapters({name: f"/{name}" for name in given}, most, Metrics(), "tiny", sent.append), sent


async def begin(made, name):
    """Begin to load an adapter, and return the task once the message has been sent or the load was rejected."""
    task = asyncio.create_task(made.load(name, f"/{name}"))
    await asyncio.sleep(0)
    return task


async def outcome(task):
    try:
        await task
    except ApiError as error:
        return error.status


def test_loads_are_limited_and_rejected_without_an_engine():
    async def scenario():
        made, sent = table("a")
        made.engine_starts()
        assert await outcome(await begin(made, "b")) == 503
        made.engine_ready()
        assert await outcome(await begin(made, "a")) == 400
        first, second = await begin(made, "b"), await begin(made, "c")
        assert await outcome(await begin(made, "b")) == 400, "it is being loaded"
        assert await outcome(await begin(made, "d")) == 400, "three are the limit"
        assert sent == [LoadAdapter("b", b"/b"), LoadAdapter("c", b"/c")] and list(made.served) == ["a"]
        made.take(AdapterFailed("b", "why", by_input=False))
        made.engine_died()
        assert [await outcome(first), await outcome(second)] == [500, 503]
        assert not made.loads and list(made.served) == ["a"]

    asyncio.run(scenario())


def test_a_retired_adapter_is_reloaded_for_its_requests_and_freed_after_them():
    async def scenario():
        made, sent = table()
        made.engine_ready()
        task = await begin(made, "a")
        made.take(AdapterLoaded("a"))
        await task
        made.unload("a")
        made.note_requests(["a"])
        made.engine_died()
        made.engine_ready()
        assert sent == [LoadAdapter("a", b"/a")] * 2 and not made.attached
        made.note_requests([])
        assert "a" in made.retired, "the engine is about to attach it"
        waiting = await begin(made, "a")
        assert made.take(AdapterLoaded("a")) is None
        made.note_requests([])
        assert sent[2:] == [UnloadAdapter("a")] and not made.retired
        await asyncio.sleep(0)
        assert sent[3:] == [LoadAdapter("a", b"/a")]
        made.take(AdapterLoaded("a"))
        await waiting
        assert made.served == {"a": "/a"}
        with pytest.raises(ApiError, match="no model 'b' any more"):
            made.check("b")

    asyncio.run(scenario())


def test_an_adapter_that_is_unloaded_while_the_engine_loads_leaves_it_at_once():
    made, sent = table("a", "b")
    assert made.engine_starts() == {"a": "/a", "b": "/b"}
    made.unload("a")
    made.note_requests([])
    made.engine_ready()
    assert sent == [UnloadAdapter("a")] and made.attached == {"b"} == set(made.served)
    made.engine_died()
    assert made.engine_starts() == {"b": "/b"}

"""Images over HTTP: every API takes them, answers depend on them as in Python, and hostile files are refused."""

import asyncio
import contextlib
import json
import threading
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest

import gesso
from gesso.images.budgets import DETAILS
from gesso.images.read import MAX_BYTES
from gesso.serve.entry import ModelEntry
from gesso.serve.errors import ApiError
from gesso.serve.http.middleware import BodyMemory, LimitedBody
from gesso.serve.models import with_images
from gesso.serve.packed_images import pack, unpack
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.serve.wire import Prepared
from tests.images.files import drawing, encoded
from tests.images.hostile import many_frames, refused
from tests.serve.image_requests import (
    APIS,
    CAT,
    CHAT,
    DOG,
    LENGTH,
    QUICK,
    SEED,
    ask,
    by_chat,
    chat,
    common,
    packed,
    part,
    text_of,
    url,
)  # fmt: skip
from tests.serve.preparing import prepare
from tests.waiting import wait_until

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def directory(seeing_directory):
    return seeing_directory


@pytest.fixture
def server(seeing_server):
    return seeing_server


@pytest.fixture(scope="module")
def seeing(seeing_directory):
    return gesso.load(seeing_directory)


def messages(files, text: str = "What?") -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": file} for file in files]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def in_python(seeing: gesso.Gesso, files, text: str = "What?") -> str:
    asked = messages(files, text)
    return seeing.chat(asked, seed=SEED, max_new_tokens=LENGTH, settle=1, **QUICK).text  # type: ignore[arg-type]


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
def test_answers_depend_on_the_images_and_their_order_as_in_python(server, seeing, api):
    cases = [(CAT,), (DOG,), (CAT, DOG), (DOG, CAT), (CAT, CAT)]
    found = [APIS[api](server, files) for files in cases]
    assert found == [in_python(seeing, files) for files in cases]
    assert len(set(found)) == len(cases)


def test_text_and_images_keep_their_order(server, seeing):
    content = [{"type": "text", "text": "One: "}, part(CAT), {"type": "text", "text": " two: "}, part(DOG)]
    answer = ask(server, CHAT, chat(content))
    read = [{"type": "image", "image": file} for file in (CAT, DOG)]
    asked = [{"role": "user", "content": [content[0], read[0], content[2], read[1]]}]
    expected = seeing.chat(asked, seed=SEED, max_new_tokens=LENGTH, settle=1, **QUICK)
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert answer["usage"]["prompt_tokens"] == len(seeing.prompt(asked).tokens), "with the tokens of images"


def test_streams_choices_and_constraints_take_images(server, seeing):
    content = [part(CAT), {"type": "text", "text": "What?"}]
    deltas = [event["choices"] for event in server.events(CHAT, chat(content))]
    streamed = "".join(choice["delta"].get("content") or "" for choices in deltas for choice in choices)
    both = [choice["message"]["content"] for choice in ask(server, CHAT, chat(content, n=2))["choices"]]
    assert streamed == both[0] == in_python(seeing, (CAT,)) != both[1]
    answer = ask(server, CHAT, chat(content, choice=["yes", "no"]))
    assert answer["choices"][0]["message"]["content"] in ("yes", "no")


def test_a_decision_takes_images(server, seeing):
    found = []
    for file in (CAT, DOG):
        asked = {"messages": [{"role": "user", "content": [part(file), {"type": "text", "text": "What?"}]}]}
        answer = ask(server, "/v1/decide", {**asked, "choices": ["yes", "no"]})
        found.append({one["choice"]: one["probability"] for one in answer["probabilities"]})
        assert found[-1] == pytest.approx(seeing.decide(messages((file,)), ["yes", "no"]).probabilities)
    assert found[0] != found[1]


def test_detail_and_tokens_choose_the_budget(server, seeing):
    page = encoded(drawing(32, 48), "PNG")
    blank = len(seeing.prompt(messages(())).tokens)

    def used(**more: Any) -> int:
        tokens: int = ask(server, "/tokenize", {"messages": [{"role": "user", "content": [more]}]})["count"]
        return tokens

    counted = {}
    for tokens in (70, 140, 280, 560, 1120):
        counted[tokens] = used(**part(page, tokens=tokens))
        assert counted[tokens] < blank + tokens
    for detail, tokens in DETAILS.items():
        assert used(type="image_url", image_url={"url": url(page), "detail": detail}) == counted[tokens]
    assert used(**part(page)) == counted[280]


def test_token_counts_have_the_image_token_in_place_of_soft_tokens(server, seeing):
    content = [part(CAT), {"type": "text", "text": "What?"}]
    found = ask(server, "/tokenize", {"messages": [{"role": "user", "content": content}]})
    prompt = seeing.prompt(messages((CAT,)))
    marks = sum(image.tokens for image in prompt.images)
    assert found["count"] == len(prompt.tokens) and found["tokens"].count(seeing.config.image_token_id) == marks
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": packed(CAT)}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [block, {"type": "text", "text": "What?"}]}]}
    assert ask(server, "/v1/messages/count_tokens", body) == {"input_tokens": len(prompt.tokens)}


def test_images_of_tool_results_follow_the_results(server, seeing):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    look = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    tools: Any = [TOOL]

    def expected(*messages: dict[str, Any]) -> str:
        options = {"seed": SEED, "max_new_tokens": LENGTH, "settle": 1, **QUICK}
        return seeing.chat([*look, result, *messages], tools=tools, tool_choice="none", **options).text

    asked = {**common(), "max_tokens": LENGTH}
    alone = expected({"role": "user", "content": [{"type": "image", "image": CAT}]})
    content = [{"type": "text", "text": "done"}, part(CAT)]
    # In every API, with the tools left out of the prompt: `tool_choice` none.
    by_chat = ask(server, CHAT, {"messages": [*look, {**result, "content": content}], **asked})
    assert by_chat["choices"][0]["message"]["content"] == alone

    source = {"type": "base64", "media_type": "image/png", "data": packed(CAT)}
    block = {"type": "tool_result", "tool_use_id": "c",
             "content": [{"type": "text", "text": "done"}, {"type": "image", "source": source}]}  # fmt: skip
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    turns = [look[0], {"role": "assistant", "content": [use]}]
    body = {"model": "tiny", "messages": [*turns, {"role": "user", "content": [block]}], **asked}
    assert ask(server, "/v1/messages", body)["content"][0]["text"] == alone
    words = {"type": "text", "text": "And?"}
    body = {"model": "tiny", "messages": [*turns, {"role": "user", "content": [block, words]}], **asked}
    with_text = expected({"role": "user", "content": [{"type": "image", "image": CAT}, words]})
    assert ask(server, "/v1/messages", body)["content"][0]["text"] == with_text

    output = [{"type": "input_text", "text": "done"}, {"type": "input_image", "image_url": url(CAT)}]
    items = [look[0], {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c", "output": output}]  # fmt: skip
    assert text_of(ask(server, "/v1/responses", {"input": items, **common(), "max_output_tokens": LENGTH})) == alone


def test_a_stored_response_keeps_its_images(server):
    image = {"type": "input_image", "image_url": url(CAT)}
    first = {"role": "user", "content": [image, {"type": "input_text", "text": "What?"}]}
    asked = {**common(), "max_output_tokens": LENGTH}
    answer = ask(server, "/v1/responses", {"input": [first], **asked})
    again = ask(server, "/v1/responses", {"input": "Sure?", "previous_response_id": answer["id"], **asked})
    third = ask(server, "/v1/responses", {"input": "Sure?", "previous_response_id": again["id"], **asked})
    said = {"role": "assistant", "content": text_of(answer)}
    whole = [first, said, {"role": "user", "content": "Sure?"}]
    assert text_of(again) == text_of(ask(server, "/v1/responses", {"input": whole, **asked}))
    assert third["usage"]["input_tokens"] > again["usage"]["input_tokens"] > answer["usage"]["input_tokens"]
    items = server.http.get(f"/v1/responses/{again['id']}/input_items?order=asc").json()["data"]
    kept = {"type": "input_image", "image_url": url(CAT), "detail": "auto", "tokens": 280}
    assert items[0]["content"] == [kept, {"type": "input_text", "text": "What?"}]


def test_the_server_says_that_the_model_sees_images(server):
    assert [model["vision"] for model in server.http.get("/v1/models").json()["data"]] == [True]
    assert "vision" in ask(server, "/api/show", {"model": "tiny"})["capabilities"]
    assert server.http.get("/ready").json()["vision"] is True


def test_metrics_count_images_and_the_log_has_no_pixels(server):
    before = server.metric("gesso_images_total")
    question = encoded(drawing(33, 44, seed=9), "PNG")
    for text in ("What is it?", "Another question"):
        by_chat(server, (question,), text)
    assert server.metric("gesso_images_total") == before + 2
    wait_until(lambda: server.metric("gesso_engine_images_read_total") > 0)
    logged = [json.loads(line) for line in server.log.read_text().splitlines() if '"images": 1' in line]
    assert logged and all(line["path"] in (CHAT, "/v1/responses", "/v1/messages", "/v1/decide", "/api/chat",
                                           "/api/generate") for line in logged)  # fmt: skip
    for file in (CAT, DOG, question):
        assert packed(file)[-60:-20] not in server.log.read_text()


# --- refusals ---------------------------------------------------------------------------------------------------------

WHERE = "messages[0].content[0]"
OTHERS = [
    ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, f"{WHERE}.image_url.url", "files"),
    ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, f"{WHERE}.image_url.url", "files"),
    ({"type": "image", "image": "/etc/passwd"}, "messages[0].content[0].image", "files"),
    ({"type": "image_url", "image_url": {"url": 5}}, "messages[0].content[0].image_url", "expected an object"),
    ({"type": "image_url", "image_url": {"url": url(CAT), "detail": "most"}}, "messages[0].content[0].image_url.detail",
     "low, auto, high"),
    (part(CAT, tokens=100), "messages[0].content[0].tokens", "70, 140, 280, 560, 1120"),
    ({"type": "input_audio", "input_audio": {}}, "messages[0].content[0]", "no audio"),
    ({"type": "video_url", "video_url": {}}, "messages[0].content[0]", "no video"),
    ({"type": "file", "file": {"file_id": "f"}}, "messages[0].content[0]", "files are not read"),
    (part(b"")["image_url"] | {"type": "image_url", "image_url": "data:image/png;base64,!!!"},
     "messages[0].content[0].image_url.url", "not valid base64"),
    ({"type": "image_url", "image_url": "data:image/png,abc"}, "messages[0].content[0].image_url.url", "in base64"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "param", "reason"), OTHERS, ids=[json.dumps(each[0])[-60:] for each in OTHERS])
def test_other_content_is_refused_by_its_field(server, given, param, reason):
    response = server.http.post(CHAT, json=chat([given]))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error") and reason in error["message"]


def test_other_apis_name_their_own_fields(server):
    bad = packed(b"no picture")
    source = {"type": "base64", "media_type": "image/png", "data": bad}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source}]}
    uses = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    user = {"role": "user", "content": "x"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
         "messages[0].content[0].source.data"),
        ("/v1/messages", {"messages": [user, uses, {"role": "user", "content": [result]}]},
         "messages[2].content[0].content[0].source.data"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
         "input[0].content[0].file_id"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a.png"}]}]},
         "input[0].content[0].image_url"),
        (CHAT, {"messages": [user, user, {"role": "tool", "name": "f", "content": [part(b"no picture")]}]},
         "messages[2].content[0].image_url.url"),
        ("/api/chat", {"messages": [user, {"role": "user", "content": "x", "images": [packed(CAT), bad]}]},
         "messages[1].images[1]"),
        ("/api/generate", {"prompt": "x", "images": [bad]}, "images[0]"),
        ("/v1/decide", {**chat([part(b"no picture")]), "choices": ["a", "b"]}, "messages[0].content[0].image_url.url"),
    ]  # fmt: skip
    for path, body, field in cases:
        drop = ("seed", "diffusion", "max_tokens") if path == "/v1/decide" else ()
        response = server.http.post(path, json={name: value for name, value in body.items() if name not in drop})
        assert response.status_code == 400 and field in response.text, (path, response.text)


HOSTILE = (
    "zero bytes", "PNG of 30,000 x 30,000", "JPEG of 60,000 x 60,000", "JPEG of 2,000 scans", "SVG", "PDF", "video",
    "PNG whose text inflates", "PNG cut after 50%", "TIFF cut after 90%", "noise", "too many bytes",
    "TIFF that claims more data than it has",
)  # fmt: skip


def damaged_tiff() -> bytes:
    """Return a file about which libtiff writes to stderr."""
    data = bytearray(encoded(drawing(60, 60), "TIFF", compression="tiff_lzw"))
    data[200 : len(data) // 2] = b"\xa5" * (len(data) // 2 - 200)
    return bytes(data)


def test_hostile_files_are_refused_at_once_and_others_are_served(server):
    expected, stop, answers = by_chat(server, (CAT,)), threading.Event(), []
    logged = len(server.log.read_text().splitlines())

    def be_served() -> None:
        while not stop.wait(0.1):
            answers.append(by_chat(server, (CAT,)))

    other = threading.Thread(target=be_served)
    other.start()
    try:
        files = [(name, data, reason) for name, data, reason in refused() if name in HOSTILE]
        for name, data, reason in [*files, ("damaged TIFF", damaged_tiff(), "the TIFF file is damaged or incomplete")]:
            response = server.http.post(CHAT, json=chat([part(data), {"type": "text", "text": "What?"}]))
            assert response.status_code == 400 and reason in response.text, (name, response.text)
            assert response.json()["error"]["param"] == "messages[0].content[0].image_url.url"
            assert len(response.text) < 1000, name
    finally:
        stop.set()
        other.join()
    assert answers and set(answers) == {expected}
    for line in server.log.read_text().splitlines()[logged:]:
        assert json.loads(line)["event"] == "request" or "engine" in line, "a decoder wrote to the log"


def test_an_animation_of_many_frames_is_its_first_frame(server, seeing):
    for _, data in many_frames():
        assert by_chat(server, (data,)) == in_python(seeing, (data,))


def test_large_bodies_have_room_for_images_and_no_more(server):
    small = encoded(drawing(8, 8), "PNG")
    file = small + bytes(MAX_BYTES - 10_000)  # data after the end of a file is ignored
    assert by_chat(server, (file, file)) == by_chat(server, (small, small))
    connection = HTTPConnection(server.url.removeprefix("http://"))
    with contextlib.closing(connection):
        connection.request("POST", CHAT, b"{", {"Content-Length": "200000000", "Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 413 and b"body_too_large" in response.read()


def test_images_beyond_the_context_are_refused_before_all_are_read(server):
    blank = encoded(drawing(8, 8), "PNG")
    response = server.http.post(CHAT, json=chat([part(blank, tokens=1120)] * 2000))
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
    assert "the images up to this one have" in response.text


def test_a_text_only_server_takes_no_images_and_no_larger_bodies(directory):
    engine = EngineSettings(model=str(directory))
    settings = with_images(ServerSettings(engine=engine, name="tiny"))
    assert settings.body_bytes == ServerLimits.body_bytes + ServerLimits.image_bytes
    blind = with_images(replace(settings, engine=replace(engine, text_only=True)))
    assert blind.body_bytes == with_images(ServerSettings()).body_bytes == ServerLimits.body_bytes
    for each, vision in ((blind, True), (settings, False)):  # by the options, by the weights
        error = prepare([ModelEntry(each)], "chat", chat([part(CAT)]), vision=vision)
        assert (error.status, error.param) == (400, f"{WHERE}.image_url.url")
        assert "the model 'tiny' sees no images; leave the image out" in error.message


def test_a_url_is_refused_by_a_server_that_fetches_no_images(directory):
    entry = ModelEntry(with_images(ServerSettings(engine=EngineSettings(model=str(directory)), name="tiny")))
    content = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    error = prepare([entry], "chat", chat(content), vision=True)
    assert (error.status, error.param) == (400, f"{WHERE}.image_url.url")
    assert "--allow-remote-images" in error.message


def test_pixels_of_a_request_are_limited_once_per_choice(directory):
    small = ServerLimits(image_bytes=20_000)
    settings = with_images(ServerSettings(engine=EngineSettings(model=str(directory)), name="tiny", limits=small))
    cases = {(1, 1): None, (1, 16): "n", (16, 1): "messages[0].content["}
    for (images, n), param in cases.items():
        body = chat([part(CAT)] * images, n=n)
        found = prepare([ModelEntry(settings)], "chat", body, context=4096, vision=True)
        assert isinstance(found, Prepared) if param is None else found.param.startswith(param)
        assert param is None or "bytes" in found.message


def test_prepared_images_count_towards_the_bytes_in_memory():
    async def scene():
        settings, bodies = ServerSettings(images=True), BodyMemory(1000)
        body = LimitedBody(None, settings, bodies, "a")
        body.hold(300)
        with pytest.raises(ApiError) as refused:
            body.hold(300)
        assert refused.value.status == 503 and bodies.total == 300
        body.release()
        assert bodies.total == 0

    asyncio.run(scene())


def test_packed_images_are_those_that_were_packed(seeing):
    images = [seeing.read_image(file) for file in (CAT, DOG, CAT)]
    shapes, blob = pack(images)
    found = unpack(json.loads(json.dumps(shapes)), memoryview(blob))
    assert [image.digest for image in found] == [images[0].digest, images[1].digest]
    assert len(blob) == sum(image.patches.nbytes for image in images[:2])

"""A server that fetches images, and decoders that crash or hang: only the request at fault fails."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.conftest import FETCH_SECONDS, PICTURE
from tests.serve.image_requests import CHAT, LENGTH, SEED, ask, by_chat, chat, common, part, text_of, url
from tests.serving import raw
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def other(picture_server):
    return picture_server


@pytest.fixture
def server(seeing_server):
    return seeing_server


@pytest.fixture
def at(other):
    other.asked.clear()
    return lambda path: f"http://localhost:{other.port}/{path}"


def question(address: str):
    return [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": "What?"}]


def refusal(server, address: str) -> str:
    response = httpx.post(f"{server.url}{CHAT}", json=chat(question(address)), timeout=PATIENCE)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_a_fetched_image_gives_the_text_of_a_sent_one_in_every_api(server, other, at):
    expected = by_chat(server, (PICTURE,))
    answer = ask(server, CHAT, chat(question(at("again/2"))))
    assert answer["choices"][0]["message"]["content"] == expected and len(other.asked) == 4
    source = {"type": "url", "url": at("file")}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **common(), "max_tokens": LENGTH}
    assert ask(server, "/v1/messages", body)["content"][0]["text"] == expected
    content = [{"type": "input_image", "image_url": at("file")}, {"type": "input_text", "text": "What?"}]
    asked = {"input": [{"role": "user", "content": content}], **common(), "max_output_tokens": LENGTH}
    assert text_of(ask(server, "/v1/responses", asked)) == expected


def test_the_same_url_is_fetched_once_for_a_request(server, other, at):
    found = ask(server, CHAT, chat([*question(at("file")), *question(at("file")), part(PICTURE)]))
    assert found["usage"]["prompt_tokens"] and len(other.asked) == 1


def test_a_stored_response_keeps_the_contents_of_a_url(server, other, at):
    content = [{"type": "input_image", "image_url": at("file")}, {"type": "input_text", "text": "What?"}]
    asked = {**common(), "max_output_tokens": LENGTH}
    first = ask(server, "/v1/responses", {"input": [{"role": "user", "content": content}], **asked})
    ask(server, "/v1/responses", {"input": "Sure?", "previous_response_id": first["id"], **asked})
    items = server.http.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert items[0]["content"][0]["image_url"] == url(PICTURE) and len(other.asked) == 1


def test_private_addresses_and_redirects_to_them_are_refused(server, other, at):
    for address in (
        "http://127.0.0.2/",
        "http://[::1]/",
        at("moved/http://169.254.169.254/"),
        at("moved/http://10.1/"),
    ):
        message = refusal(server, address)
        assert message.startswith("messages[0].content[0].image_url.url: no public address is known for ")
    assert "expected a URL like https://" in refusal(server, at("moved/file:///etc/passwd"))
    assert "a server opens no files" in refusal(server, "file:///etc/passwd")
    log = server.log.read_text()
    assert "169.254.169.254" not in log and "no public address is known for" in log


def test_other_files_and_too_many_urls_are_refused(server, other, at):
    other.contents = b"<html>"
    try:
        assert "this is a web page" in refusal(server, at("file"))
    finally:
        other.contents = PICTURE
    assert "answered with status 404" in refusal(server, at("missing"))
    content = [part for number in range(17) for part in question(at(f"file/{number}"))]
    response = server.http.post(CHAT, json=chat(content))
    assert response.status_code == 400 and "at most 16 images are fetched for a request" in response.text


def test_slow_servers_are_given_up_while_other_requests_are_served(server, at):
    expected = by_chat(server, (PICTURE,))
    with ThreadPoolExecutor(3) as threads:
        slow = [threads.submit(refusal, server, at(f"slow/{part}")) for part in ("head", "body", "body")]
        answers = []
        while not all(each.done() for each in slow):
            answers.append(by_chat(server, (PICTURE,)))
            time.sleep(0.2)
        assert len(answers) > 1 and set(answers) == {expected}
    assert all(f"the images did not arrive within {FETCH_SECONDS:g} s" in each.result() for each in slow)


def test_a_client_that_leaves_ends_its_fetch(server, other, at):
    gone = other.left
    connection = raw(server.url, chat(question(at("slow/body"))), path=CHAT)
    wait_until(lambda: other.asked)
    connection.close()
    wait_until(lambda: other.left > gone)


@pytest.mark.parametrize("fault", ("crash", "hang"))
def test_a_decoder_that_crashes_or_hangs_fails_its_own_request(server, fault):
    expected, stop, answers = by_chat(server, (PICTURE,)), threading.Event(), []

    def be_served():
        while not stop.wait(0.2):
            answers.append(by_chat(server, (PICTURE,)))

    def at_fault():
        """Ask until the request is blamed: on a busy machine a hanging child may get too little processor time."""
        while (response := server.http.post(CHAT, json=chat(question(f"data:{fault};base64,AAAA")))).status_code == 503:
            assert response.headers["retry-after"]
        return response

    other = threading.Thread(target=be_served)
    other.start()
    try:
        response = at_fault()
    finally:
        stop.set()
        other.join()
    assert response.status_code == 400, response.text
    assert "takes more than 2 s to prepare, or crashes the process" in response.json()["error"]["message"]
    assert set(answers) <= {expected} and by_chat(server, (PICTURE,)) == expected
    assert ask(server, CHAT, chat("Hello"))["choices"][0]["seed"] == SEED

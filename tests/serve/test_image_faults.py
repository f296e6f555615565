"""A server that fetches images, and decoders that crash or hang: only the request at fault fails."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.images import server as pictures
from tests.images.files import drawing, encoded
from tests.serve.image_requests import CHAT, LENGTH, SEED, ask, by_chat, chat, common, part, text_of, url
from tests.serving import make_model, raw, serving
from tests.waiting import PATIENCE, wait_until

FILE = encoded(drawing(50, 30, seed=4), "PNG")
SECONDS = 5.0
# Python runs `sitecustomize.py` at the start of each process.
PATCHES = """\
import os, signal
from gesso.serve import remote_images
from gesso.serve.prepare import images

checked, read = remote_images.is_public, images.read_source
remote_images.is_public = lambda address: str(address) == "127.0.0.1" or checked(address)
remote_images.PORTS = {{"http": (80, {port}), "https": (443,)}}
remote_images.SECONDS = {seconds}

def faulty(source, *arguments, **options):
    if "crash" in str(source)[:20]:
        os.kill(os.getpid(), signal.SIGSEGV)
    while "hang" in str(source)[:20]:
        pass
    return read(source, *arguments, **options)

images.read_source = faulty
"""


@pytest.fixture(scope="module")
def other():
    with pictures.serving(FILE) as running:
        yield running


@pytest.fixture(scope="module")
def server(other, tmp_path_factory):
    directory = make_model(tmp_path_factory.mktemp("seeing") / "model", sees=True)
    patches = tmp_path_factory.mktemp("patches")
    (patches / "sitecustomize.py").write_text(PATCHES.format(port=other.port, seconds=SECONDS))
    path = os.pathsep.join(filter(None, (str(patches), os.environ.get("PYTHONPATH"))))
    options = ("--model", str(directory), "--name", "tiny", "--allow-remote-images", "--prepare-seconds", "2")
    with serving(tmp_path_factory.mktemp("log") / "log", *options, PYTHONPATH=path) as running:
        running.wait_ready()
        yield running


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
    expected = by_chat(server, (FILE,))
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
    found = ask(server, CHAT, chat([*question(at("file")), *question(at("file")), part(FILE)]))
    assert found["usage"]["prompt_tokens"] and len(other.asked) == 1


def test_a_stored_response_keeps_the_contents_of_a_url(server, other, at):
    content = [{"type": "input_image", "image_url": at("file")}, {"type": "input_text", "text": "What?"}]
    asked = {**common(), "max_output_tokens": LENGTH}
    first = ask(server, "/v1/responses", {"input": [{"role": "user", "content": content}], **asked})
    ask(server, "/v1/responses", {"input": "Sure?", "previous_response_id": first["id"], **asked})
    items = server.http.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert items[0]["content"][0]["image_url"] == url(FILE) and len(other.asked) == 1


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
        other.contents = FILE
    assert "answered with status 404" in refusal(server, at("missing"))
    content = [part for number in range(17) for part in question(at(f"file/{number}"))]
    response = server.http.post(CHAT, json=chat(content))
    assert response.status_code == 400 and "at most 16 images are fetched for a request" in response.text


def test_slow_servers_are_given_up_while_other_requests_are_served(server, at):
    expected = by_chat(server, (FILE,))
    with ThreadPoolExecutor(3) as threads:
        slow = [threads.submit(refusal, server, at("slow/body")) for _ in range(3)]
        answers = []
        while not all(each.done() for each in slow):
            answers.append(by_chat(server, (FILE,)))
        assert len(answers) > 1 and set(answers) == {expected}
    assert all(f"the images did not arrive within {SECONDS:g} s" in each.result() for each in slow)


def test_a_client_that_leaves_ends_its_fetch(server, other, at):
    gone = other.left
    connection = raw(server.url, chat(question(at("slow/body"))), path=CHAT)
    wait_until(lambda: other.asked)
    connection.close()
    wait_until(lambda: other.left > gone)


@pytest.mark.parametrize("fault", ("crash", "hang"))
def test_a_decoder_that_crashes_or_hangs_fails_its_own_request(server, fault):
    expected, stop, answers = by_chat(server, (FILE,)), threading.Event(), []

    def be_served():
        while not stop.wait(0.01):
            answers.append(by_chat(server, (FILE,)))

    other = threading.Thread(target=be_served)
    other.start()
    try:
        began = time.monotonic()
        response = server.http.post(CHAT, json=chat(question(f"data:{fault};base64,AAAA")))
        assert response.status_code == 400, response.text
        assert "takes more than 2 s to prepare, or crashes the process" in response.json()["error"]["message"]
        assert time.monotonic() - began < PATIENCE
    finally:
        stop.set()
        other.join()
    assert set(answers) <= {expected} and by_chat(server, (FILE,)) == expected
    assert ask(server, CHAT, chat("Hello"))["choices"][0]["seed"] == SEED

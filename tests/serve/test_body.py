"""Which content types are accepted, and that no web page can send them without permission."""

import pytest
from starlette.datastructures import Headers

from gesso.serve.http.body import accepts_type

FORM = "application/x-www-form-urlencoded"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
# Headers of clients that are no browsers, and marks of browsers: one of them is enough.
CLIENTS = (
    {"user-agent": "curl/8.5.0", "accept": "*/*", "host": "localhost:11434"},
    {"user-agent": "python-httpx/0.28.1", "accept-encoding": "gzip", "connection": "keep-alive"},
    {"authorization": "Bearer key"},
)
MARKS = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-mode": "no-cors"},
    {"sec-ch-ua-platform": '"Linux"'},
    {"referer": "https://evil.example/"},
    {"cookie": "a=b"},
    {"accept-language": "en"},
    {"access-control-request-private-network": "true"},
    {"user-agent": FIREFOX},
    {"user-agent": f" {FIREFOX.upper()}"},
)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
@pytest.mark.parametrize("kind", [{}, {"content-type": FORM}, {"content-type": f"{FORM.title()}; charset=utf-8"}])
def test_ollamas_clients_need_not_declare_json(client, kind):
    headers = Headers(client | kind)
    assert accepts_type("/api/chat", headers) and accepts_type("/api/generate", headers)
    assert not accepts_type("/v1/chat/completions", headers)
    assert not accepts_type("/v1/load_lora_adapter", headers)
    assert not accepts_type("/apix", headers)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
@pytest.mark.parametrize("mark", MARKS, ids=str)
@pytest.mark.parametrize("kind", [{}, {"content-type": FORM}, {"content-type": ""}])
def test_one_mark_of_a_browser_is_enough_to_need_json(client, mark, kind):
    assert not accepts_type("/api/chat", Headers(client | mark | kind))


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=a", "text/ping", "image/png", "json"])
def test_types_that_a_page_can_send_without_a_preflight_are_rejected(kind):
    for mark in ({}, *MARKS):
        assert not accepts_type("/api/chat", Headers({"content-type": kind} | mark))


def test_json_is_accepted_everywhere():
    for path in ("/api/chat", "/v1/chat/completions"):
        for mark in ({}, *MARKS):  # a browser sends it to another origin only after a preflight
            assert accepts_type(path, Headers({"content-type": "application/JSON; charset=utf-8"} | mark))

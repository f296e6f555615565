"""Endpoints of other servers that this one does not have."""

import pytest
from starlette.testclient import TestClient

from gesso.serve.http.absent_routes import ABSENT
from gesso.serve.http.app import create_app
from gesso.serve.settings import ServerSettings


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(ServerSettings()))  # not started: these endpoints need no engine


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime"])
def test_a_websocket_is_refused_with_the_reason(client, path):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    response = client.get(path, headers=upgrade)
    assert response.status_code == 501 and "no WebSockets" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("POST", "/v1/nowhere", "POST /v1/chat/completions"),
        ("GET", "/api/nowhere", "POST /api/chat"),
        ("GET", "/nowhere", "POST /infill"),
    ],
)
def test_the_error_of_an_unknown_endpoint_lists_those_of_its_api(client, method, path, endpoint):
    response = client.request(method, path)
    error = response.json()["error"]
    message = error if path.startswith("/api/") else error["message"]
    assert response.status_code == 404
    assert message.startswith(f"there is no endpoint '{method} {path}'; there are: ") and endpoint in message
    assert ("/v1/" in message) != path.startswith("/api/")


@pytest.mark.parametrize(("method", "path"), ABSENT)
def test_absent_endpoints_give_the_reason_in_one_line(client, method, path):
    response = client.request(method, path.format(id="resp_1", digest="sha256:0"), json={"input": "a"})
    assert response.status_code == 501
    if method != "HEAD":
        error = response.json()["error"]
        message = error if path.startswith("/api/") else error["message"]
        assert message.startswith("this server") and "\n" not in message

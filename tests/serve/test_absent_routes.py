"""Endpoints of other servers that this one does not have."""

import pytest
from starlette.testclient import TestClient

from gesso.serve.http.absent_routes import ABSENT
from gesso.serve.http.app import create_app
from gesso.serve.settings import ServerSettings


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(ServerSettings()))  # not started: these endpoints need no engine


@pytest.mark.parametrize(("method", "path"), ABSENT)
def test_absent_endpoints_give_the_reason_in_one_line(client, method, path):
    response = client.request(method, path.format(id="resp_1", digest="sha256:0"), json={"input": "a"})
    assert response.status_code == 501
    if method != "HEAD":
        error = response.json()["error"]
        message = error if path.startswith("/api/") else error["message"]
        assert message.startswith("this server") and "\n" not in message

"""Answers to pages of an allowed origin."""

import pytest
from starlette.testclient import TestClient

from gesso.serve.http.app import create_app
from gesso.serve.settings import ServerSettings

PAGE, OTHER = "https://page.example", "https://other.example"
SETTINGS = ServerSettings(keys=("secret",), cors_origins=(PAGE,))
JSON = {"Content-Type": "application/json", "Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def client():
    # Not started: requests that are rejected before they are read need no engine.
    return TestClient(create_app(SETTINGS))


def post(client, origin, headers=JSON, content=b"{}"):
    return client.post("/v1/completions", headers={"Origin": origin, **headers}, content=content)


def allowed(response):
    return response.headers.get("access-control-allow-origin")


def test_a_page_of_an_allowed_origin_can_read_why_a_request_was_rejected(client):
    without_key = post(client, PAGE, headers={"Content-Type": "application/json"})
    assert (without_key.status_code, allowed(without_key)) == (401, PAGE)
    too_large = post(client, PAGE, headers=JSON | {"Content-Length": "9" * 12})
    assert (too_large.status_code, allowed(too_large)) == (413, PAGE)


def test_a_page_of_another_origin_cannot_read_why_a_request_was_rejected(client):
    response = post(client, OTHER, headers={})
    assert response.status_code == 401 and allowed(response) is None


def test_a_preflight_needs_no_key_and_any_other_options_request_does(client):
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
    preflight = client.options("/v1/completions", headers=asked)
    assert (preflight.status_code, allowed(preflight)) == (200, PAGE)
    assert client.options("/v1/completions", headers={"Origin": PAGE}).status_code == 401


def test_a_page_can_read_that_the_server_failed_and_under_which_request_id():
    def fail():
        raise ZeroDivisionError

    app = create_app(SETTINGS)
    app.add_api_route("/fails", fail, methods=["POST"])
    response = TestClient(app).post("/fails", headers={"Origin": PAGE, "X-Request-Id": "r1", **JSON}, content=b"{}")
    assert (response.status_code, allowed(response)) == (500, PAGE)
    assert response.headers["x-request-id"] == "r1" and "internal error" in response.json()["error"]["message"]

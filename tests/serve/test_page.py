"""The studio's files and their headers, without a browser."""

import asyncio
import re

import httpx
import pytest

from gesso.serve.http.app import create_app
from gesso.serve.settings import EngineSettings, ServerSettings
from gesso.serve.studio_files import files


@pytest.fixture(scope="module")
def get(tiny_directory):
    """Get a path from a server with keys whose engine is not started."""
    app = create_app(ServerSettings(engine=EngineSettings(model=str(tiny_directory)), keys=("secret",)))

    def get(path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get(path)

        return asyncio.run(ask())

    return get


def test_studio_files_need_no_key_and_have_a_strict_policy(get):
    for path in ("/", "/docs", *(f"/studio/{name}" for name in files())):
        response = get(path)
        assert response.status_code == 200, path
        policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["img-src"] == "'self' data:"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert response.headers["x-content-type-options"] == "nosniff"
    assert get("/openapi.json").status_code == 200  # the same on every server, so it needs no key
    assert get("/v1/models").status_code == 401


def test_only_studio_files_are_served(get):
    for name in ("nothing.js", "..%2fpage.py", "%2fetc%2fpasswd", ".hidden"):
        assert get(f"/studio/{name}").status_code == 404
    assert get("/redoc").status_code != 200  # FastAPI's page loads files from other hosts


def test_studio_files_name_no_other_host():
    """The only address in any file is the namespace of SVG."""
    for name, data in files().items():
        addresses = set(re.findall(r"https?://[\w.-]+\.\w+|[\"'(]//\w+", data.decode()))
        assert addresses <= {"http://www.w3.org"}, (name, addresses)


def test_no_file_parses_text_as_markup():
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser")
    for name, data in files().items():
        assert not forbidden.search(data.decode()), name


def test_studio_files_have_at_most_400_lines():
    for name, data in files().items():
        assert data.count(b"\n") <= 400, name

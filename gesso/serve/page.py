"""The studio: static files of the package, to a browser that may fetch nothing from elsewhere.

They hold no secret and need no key; the page asks for one when an endpoint does.
"""

from importlib import resources
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from gesso.serve.errors import ApiError

PREFIX = "/studio/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the page and its modules are of one version
}


def files() -> dict[str, bytes]:
    """All files of the studio, by name."""
    folder = resources.files("gesso.serve").joinpath("studio")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def content_type(name: str) -> str:
    return {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml"}.get(Path(name).suffix, "text/javascript")


def is_open(path: str) -> bool:
    return path == "/" or path.startswith(PREFIX)


def add_studio(app: FastAPI) -> None:
    held = files()

    def send(name: str) -> Response:
        if name not in held:
            raise ApiError(404, f"the studio has no file {name[:100]!r}", code="not_found")
        return Response(held[name], media_type=content_type(name), headers=HEADERS)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return send("index.html")

    @app.get(PREFIX + "{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return send(name)

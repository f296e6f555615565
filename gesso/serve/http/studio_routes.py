"""The studio and the page of the API: files to a browser. They hold no secret and need no key; the studio asks for one
when it has to."""

from fastapi import FastAPI
from fastapi.responses import Response

from gesso.serve.errors import ApiError
from gesso.serve.studio_files import HEADERS, content_type, files

PREFIX = "/studio/"
OPEN = ("/", "/docs", "/openapi.json")


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(PREFIX)


def add_studio(app: FastAPI) -> None:
    held = files()

    def send(name: str) -> Response:
        if name not in held:
            raise ApiError(404, f"the studio has no file {name[:100]!r}", code="not_found")
        return Response(held[name], media_type=content_type(name), headers=HEADERS)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return send("index.html")

    @app.get("/docs", include_in_schema=False)
    async def reference() -> Response:
        return send("reference.html")

    @app.get(PREFIX + "{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return send(name)

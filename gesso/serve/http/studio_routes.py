"""Routes of the studio and of the API reference page. The files hold no secret, so these routes need no key."""

from fastapi import FastAPI
from fastapi.responses import Response

from gesso.serve.errors import ApiError
from gesso.serve.studio_files import HEADERS, content_type, files

PREFIX = "/studio/"


def add_studio(app: FastAPI) -> None:
    contents = files()

    def send(name: str) -> Response:
        if name not in contents:
            raise ApiError(404, f"the studio has no file {name[:100]!r}", code="not_found")
        return Response(contents[name], media_type=content_type(name), headers=HEADERS)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)  # Ollama's command line sends HEAD
    async def page() -> Response:
        return send("index.html")

    @app.get("/docs", include_in_schema=False)
    async def reference() -> Response:
        return send("reference.html")

    @app.get(PREFIX + "{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return send(name)

"""The endpoints of llama.cpp's server that editors use, and those that are absent."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gesso.serve import llama_cpp
from gesso.serve.errors import ApiError
from gesso.serve.http.openapi import document
from gesso.serve.llama_cpp import WITHOUT_EMBEDDINGS, WITHOUT_SLOTS, InfillFields, LlamaCppCompletionFields
from gesso.serve.models import Models

Generate = Callable[..., Awaitable[Response]]
ABSENT = 501
EMBEDDINGS = ("/embedding", "/embeddings", "/v1/embeddings")


def add_llama_cpp_routes(app: FastAPI, models: Models, generate: Generate) -> None:
    """Add the endpoints. `generate` answers a request in the form of a module, by the task of this name."""

    @app.post("/infill", tags=["text"], openapi_extra=document(InfillFields))
    async def infill(request: Request) -> Response:
        """Write the text between `input_prefix` + `prompt` and `input_suffix`, in the form of llama.cpp's API."""
        return await generate(llama_cpp, request, "llama_cpp_infill")

    @app.post("/completion", tags=["text"], openapi_extra=document(LlamaCppCompletionFields))
    async def completion(request: Request) -> Response:
        """Continue a text, in the form of llama.cpp's API. A prompt with fill-in-the-middle markers is a hole."""
        return await generate(llama_cpp, request, "llama_cpp_completion")

    @app.get("/props", tags=["models"])
    async def props(model: str | None = None) -> dict[str, Any]:
        """Return the context of a model, in the form of llama.cpp's API."""
        served = models.of(model)
        return llama_cpp.properties(served, model or served.frontend.name)

    @app.get("/slots", tags=["operation"], include_in_schema=False)
    async def slots() -> None:
        raise ApiError(ABSENT, WITHOUT_SLOTS, code="not_supported")

    for path in EMBEDDINGS:

        @app.post(path, tags=["text"], include_in_schema=False)
        async def embeddings() -> None:
            raise ApiError(ABSENT, WITHOUT_EMBEDDINGS, code="not_supported")

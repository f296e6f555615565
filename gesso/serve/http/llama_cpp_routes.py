"""The endpoints of llama.cpp's server that editors use."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gesso.serve import llama_cpp
from gesso.serve.http.openapi import document
from gesso.serve.llama_cpp import InfillFields, LlamaCppCompletionFields
from gesso.serve.models import Models

Generate = Callable[..., Awaitable[Response]]


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
        return llama_cpp.properties(served, model or served.entry.name)

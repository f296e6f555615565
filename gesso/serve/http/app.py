"""The HTTP endpoints: OpenAI's and a few of our own. `supervisor` explains how they reach the engine.

Handlers pass on bodies as bytes: nothing whose cost grows with a request runs on the event loop.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from types import ModuleType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

import gesso
from gesso.serve.errors import ApiError
from gesso.serve.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    EditFields,
    ResponseFields,
    TokenizeFields,
)
from gesso.serve.generation import Generation, Gone, unless_gone
from gesso.serve.http import error_handlers
from gesso.serve.http.middleware import Guard, note
from gesso.serve.http.openapi import document, install_schemas
from gesso.serve.http.sse import EventStream
from gesso.serve.http.studio_routes import add_studio
from gesso.serve.metrics import CONTENT_TYPE, Metrics
from gesso.serve.models import Models
from gesso.serve.openai import chat, completions, edits, responses
from gesso.serve.settings import ServerSettings

TITLE = "Gesso"


def create_app(settings: ServerSettings) -> FastAPI:
    metrics = Metrics()
    models = Models(settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await models.start()
        try:
            yield
        finally:
            await models.stop()

    # FastAPI's own documentation pages load files from elsewhere; the studio has one that does not.
    app = FastAPI(title=TITLE, version=gesso.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.supervisor = models.main.supervisor
    error_handlers.install(app)
    _add_text(app, models)
    _add_tokens(app, models)
    _add_operation(app, models, metrics)
    add_studio(app)
    install_schemas(app)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
        )
    paths = frozenset(str(getattr(route, "path", "")) for route in app.routes)
    app.add_middleware(Guard, settings=settings, metrics=metrics, paths=paths)
    return app


# --- text -------------------------------------------------------------------------------------------------------------


def _add_text(app: FastAPI, models: Models) -> None:
    async def write(endpoint: ModuleType, request: Request) -> Response:
        """Answer a request; the endpoint's module formats the answer."""
        name = endpoint.__name__.rpartition(".")[2]
        try:
            reading = models.accept(name, await body_of(request), request.state.client)
            model, asked, jobs = await unless_gone(request.receive, reading)
            await models.wake(model)
            generation = Generation(model.supervisor, model.settings.limits, jobs)
            note(request.state, model=asked.model, stream=asked.stream, jobs=len(jobs), user=asked.user)
            if asked.stream:
                return EventStream(endpoint.stream(model, asked, generation), partial(_finish, generation, request))
            await unless_gone(request.receive, generation.results())
        except Gone:
            return Response(status_code=499)  # for the log: there is no one to read it
        note(request.state, **_counts(generation))
        # In a thread: an answer of thousands of tokens with log-probabilities takes a while to format.
        content = await asyncio.to_thread(lambda: json.dumps(endpoint.answer(model, asked, generation)))
        return Response(content, media_type="application/json")

    @app.post("/v1/chat/completions", tags=["text"], openapi_extra=document(ChatFields))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await write(chat, request)

    @app.post("/v1/completions", tags=["text"], openapi_extra=document(CompletionFields))
    async def text_completions(request: Request) -> Response:
        """Continue a text, or with `suffix` write the text that is missing before it."""
        return await write(completions, request)

    @app.post("/v1/edits", tags=["text"], openapi_extra=document(EditFields))
    async def text_edits(request: Request) -> Response:
        """Rewrite a span of a text."""
        return await write(edits, request)

    @app.post("/v1/responses", tags=["text"], openapi_extra=document(ResponseFields))
    async def text_responses(request: Request) -> Response:
        """Answer text or messages, in the newer form of the same API."""
        return await write(responses, request)


async def body_of(request: Request) -> bytes:
    """Return the body. A web page can post any other type here without asking first (CORS): it is rejected."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, "send the body as JSON: the header Content-Type must be application/json")
    try:
        return await request.body()
    except ClientDisconnect:
        raise Gone from None


def _finish(generation: Generation, request: Request) -> None:
    """End a stream's jobs. `Generation.events` does the same, unless the stream ended before it was first read."""
    generation.cancel()
    note(request.state, **_counts(generation))


def _counts(generation: Generation) -> dict[str, Any]:
    usage = generation.usage()
    names = ("prompt_tokens", "completion_tokens")
    return {**{name: usage[name] for name in names}, "steps": usage["diffusion"]["steps"]}


# --- tokens -----------------------------------------------------------------------------------------------------------


def _add_tokens(app: FastAPI, models: Models) -> None:
    async def convert(endpoint: str, request: Request) -> Response:
        try:
            work = models.prepare(endpoint, await body_of(request), request.state.client)
            _, answer = await unless_gone(request.receive, work)
        except Gone:
            return Response(status_code=499)
        return Response(answer, media_type="application/json")

    @app.post("/tokenize", tags=["tokens"], openapi_extra=document(TokenizeFields))
    async def tokenize(request: Request) -> Response:
        """Return the tokens of a text, or of a conversation as the model would read it."""
        return await convert("tokenize", request)

    @app.post("/detokenize", tags=["tokens"], openapi_extra=document(DetokenizeFields))
    async def detokenize(request: Request) -> Response:
        """Return the text of tokens."""
        return await convert("detokenize", request)


# --- the server itself ------------------------------------------------------------------------------------------------


def _add_operation(app: FastAPI, models: Models, metrics: Metrics) -> None:
    supervisor = models.main.supervisor
    started = int(time.time())

    @app.get("/v1/models", tags=["models"])
    async def list_models() -> dict[str, Any]:
        """List the model, its adapters, and the other bundled models."""
        return {"object": "list", "data": [_model(name) for name in models.names]}

    @app.get("/v1/models/{model:path}", tags=["models"])
    async def model(model: str) -> dict[str, Any]:
        """Describe one of them."""
        return _model(model)

    def _model(name: str) -> dict[str, Any]:
        served = models.of(name)
        parent = {"parent": served.frontend.name} if name != served.frontend.name else {}
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "gesso",
            "max_model_len": served.context,
            **parent,
        }

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, Any]:
        """Return 200 as long as the server runs, whatever its engine does."""
        trouble = {} if supervisor.trouble is None else {"message": supervisor.trouble}
        return {"status": "ok", "engine": supervisor.state, "progress": round(supervisor.progress, 2), **trouble}

    @app.get("/ready", tags=["operation"])
    async def ready() -> Response:
        """Return 200 when the engine works; 503 while it loads, stalls or restarts, and its progress."""
        body: dict[str, Any] = {"status": supervisor.state, "progress": round(supervisor.progress, 2)}
        if supervisor.trouble is not None:
            body["message"] = supervisor.trouble
        if supervisor.ready is not None:
            body |= asdict(supervisor.ready)
        ok = supervisor.state == "ready"
        return JSONResponse(body, 200 if ok else 503, headers={} if ok else {"Retry-After": "1"})

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Return metrics in Prometheus's text format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

"""The HTTP side: OpenAI's endpoints and a few of our own. `supervisor` says how it and the engine meet."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from types import ModuleType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response

import gesso
from gesso.serve import chat, completions, edits, errors, responses
from gesso.serve.fields import (
    ChatFields,
    Common,
    CompletionFields,
    DetokenizeFields,
    EditFields,
    ResponseFields,
    TokenizeFields,
)
from gesso.serve.generation import Generation, Gone, unless_gone
from gesso.serve.guard import Guard, note
from gesso.serve.metrics import CONTENT_TYPE, Metrics
from gesso.serve.models import Models
from gesso.serve.page import add_studio
from gesso.serve.settings import ServerSettings
from gesso.serve.stream import EventStream

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

    # FastAPI's own pages of the API are made of files from elsewhere; ours is among the studio's.
    app = FastAPI(title=TITLE, version=gesso.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.supervisor = models.main.supervisor
    errors.install(app)
    _add_writing(app, models)
    _add_tokens(app, models)
    _add_operation(app, models, metrics)
    add_studio(app)
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


def _add_writing(app: FastAPI, models: Models) -> None:
    async def write(endpoint: ModuleType, asked: Common, request: Request) -> Response:
        """The same for every endpoint, which says how its requests are read and how its answers look."""
        desk = models.desk(asked.model)
        jobs = await endpoint.jobs(desk, asked, request.state.client)
        await models.wake(desk)
        generation = Generation(desk.supervisor, desk.settings.limits, jobs)
        model = asked.model or desk.settings.name
        note(request.state, model=model, stream=asked.stream, jobs=len(jobs), user=asked.user)
        if asked.stream:
            return EventStream(_noted(endpoint.stream(desk, asked, generation), generation, request))
        try:
            answer = await unless_gone(request.receive, endpoint.answer(desk, asked, generation))
        except Gone:
            return Response(status_code=499)  # nobody reads it; the log does
        note(request.state, **_counts(generation))
        return JSONResponse(answer)

    @app.post("/v1/chat/completions", tags=["text"])
    async def chat_completions(asked: ChatFields, request: Request) -> Response:
        """Answer a conversation."""
        return await write(chat, asked, request)

    @app.post("/v1/completions", tags=["text"])
    async def text_completions(asked: CompletionFields, request: Request) -> Response:
        """Continue a text, or with `suffix` write what is missing in it."""
        return await write(completions, asked, request)

    @app.post("/v1/edits", tags=["text"])
    async def text_edits(asked: EditFields, request: Request) -> Response:
        """Write a span of a text anew."""
        return await write(edits, asked, request)

    @app.post("/v1/responses", tags=["text"])
    async def text_responses(asked: ResponseFields, request: Request) -> Response:
        """Answer text or messages, in the newer form of the same API."""
        return await write(responses, asked, request)


async def _noted(events: AsyncGenerator[bytes], generation: Generation, request: Request) -> AsyncGenerator[bytes]:
    try:
        async for part in events:
            yield part
    finally:
        await events.aclose()
        note(request.state, **_counts(generation))


def _counts(generation: Generation) -> dict[str, Any]:
    usage = generation.usage()
    names = ("prompt_tokens", "completion_tokens")
    return {**{name: usage[name] for name in names}, "steps": usage["diffusion"]["steps"]}


# --- tokens -----------------------------------------------------------------------------------------------------------


def _add_tokens(app: FastAPI, models: Models) -> None:
    @app.post("/tokenize", tags=["tokens"])
    async def tokenize(asked: TokenizeFields) -> dict[str, Any]:
        """The tokens of a text, or of a conversation as the model would read it."""
        desk = models.desk(asked.model)
        if asked.messages is not None:
            tokens = await desk.chat_ids(asked.messages, tools=asked.tools)
        else:
            tokens = await desk.ids(asked.prompt or "", bos=asked.add_special_tokens)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": desk.max_length}

    @app.post("/detokenize", tags=["tokens"])
    async def detokenize(asked: DetokenizeFields) -> dict[str, Any]:
        """The text of tokens."""
        desk = models.desk(asked.model)
        return {"prompt": desk.tokenizer.decode(asked.tokens, special=not asked.skip_special_tokens)}


# --- the server itself ------------------------------------------------------------------------------------------------


def _add_operation(app: FastAPI, models: Models, metrics: Metrics) -> None:
    supervisor = models.main.supervisor
    started = int(time.time())

    @app.get("/v1/models", tags=["models"])
    async def list_models() -> dict[str, Any]:
        """The model and its adapters, and the others of the box."""
        return {"object": "list", "data": [_model(name) for name in models.names]}

    @app.get("/v1/models/{model:path}", tags=["models"])
    async def model(model: str) -> dict[str, Any]:
        """One of them."""
        return _model(model)

    def _model(name: str) -> dict[str, Any]:
        desk = models.desk(name)
        parent = {"parent": desk.settings.name} if name != desk.settings.name else {}
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "gesso",
            "max_model_len": desk.max_length,
            **parent,
        }

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, Any]:
        """200 as long as the server runs, whatever its engine does."""
        trouble = {} if supervisor.trouble is None else {"message": supervisor.trouble}
        return {"status": "ok", "engine": supervisor.state, "progress": round(supervisor.progress, 2), **trouble}

    @app.get("/ready", tags=["operation"])
    async def ready() -> Response:
        """200 when requests are worked on; 503 while the model loads or the engine restarts, and how far it is."""
        body: dict[str, Any] = {"status": supervisor.state, "progress": round(supervisor.progress, 2)}
        if supervisor.trouble is not None:
            body["message"] = supervisor.trouble
        if supervisor.ready is not None:
            body |= asdict(supervisor.ready)
        ok = supervisor.state == "ready"
        return JSONResponse(body, 200 if ok else 503, headers={} if ok else {"Retry-After": "1"})

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Counters, in Prometheus's text format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

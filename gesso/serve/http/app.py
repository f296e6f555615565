"""The HTTP endpoints: those of OpenAI's, Anthropic's and Ollama's APIs, and a few of our own.

Handlers forward bodies as bytes. No work whose cost grows with the size of a request runs on the event loop.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response

import gesso
from gesso.serve import anthropic, ollama
from gesso.serve.adapter_follower import Board
from gesso.serve.anthropic_fields import MessagesFields
from gesso.serve.fields import Fields
from gesso.serve.form import AnswerForm, OllamaForm
from gesso.serve.generation import Generation, SentBody
from gesso.serve.http import error_handlers
from gesso.serve.http.absent_routes import add_absent_routes
from gesso.serve.http.adapter_routes import add_adapter_routes
from gesso.serve.http.body import json_body
from gesso.serve.http.disconnect import CLIENT_LEFT, ClientDisconnected, cancel_on_disconnect
from gesso.serve.http.llama_cpp_routes import add_llama_cpp_routes
from gesso.serve.http.middleware import RequestGuard, add_to_log
from gesso.serve.http.openapi import document, install_schemas
from gesso.serve.http.response_routes import add_stored_responses
from gesso.serve.http.sse import EVENTS, LINES, EventStream
from gesso.serve.http.studio_routes import add_studio
from gesso.serve.leniency import warning_headers
from gesso.serve.metrics import CONTENT_TYPE, Metrics
from gesso.serve.models import Models, with_images
from gesso.serve.ollama import OllamaChatFields, OllamaGenerateFields, PullFields, ShowFields
from gesso.serve.openai import chat, completions, decide, edits, responses
from gesso.serve.openai.chat_fields import ChatFields
from gesso.serve.openai.response_fields import ResponseFields
from gesso.serve.openai.text_fields import CompletionFields, DecideFields, DetokenizeFields, EditFields, TokenizeFields
from gesso.serve.settings import ServerSettings

TITLE = "Gesso"


def create_app(settings: ServerSettings, board: Board | None = None) -> FastAPI:
    settings, metrics = with_images(settings), Metrics()
    models = Models(settings, metrics, board)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await models.start()
        try:
            yield
        finally:
            await models.stop()

    # FastAPI's documentation pages load files from other hosts; the studio has one that does not.
    app = FastAPI(title=TITLE, version=gesso.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.supervisor, app.state.follower = models.main.supervisor, models.follower
    error_handlers.install(app)
    _add_text_endpoints(app, models, metrics)
    add_stored_responses(app, models)
    _add_token_endpoints(app, models)
    _add_operation_endpoints(app, models, metrics)
    add_adapter_routes(app, models)
    add_absent_routes(app)
    add_studio(app)
    install_schemas(app)
    paths = frozenset(str(getattr(route, "path", "")) for route in app.routes)
    app.add_middleware(RequestGuard, settings=settings, metrics=metrics, paths=paths)
    if settings.cors_origins:
        # Outside the guard, so that a page can read why the guard rejected its request.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            # Official clients send twenty headers of their own, and more with each version. None has an effect here
            # but the key, and only pages of the allowed origins may send them.
            allow_headers=["*"],
        )
    return app


def _post(app: FastAPI, path: str, tag: str, fields: type[Fields]) -> Callable[[Any], Any]:
    return app.post(path, tags=[tag], openapi_extra=document(fields))


def _add_text_endpoints(app: FastAPI, models: Models, metrics: Metrics) -> None:
    async def generate(endpoint: ModuleType, request: Request, task: str, media_type: str = EVENTS) -> Response:
        """Generate the answer to a request, which the task prepares. The module of the endpoint formats it."""
        try:
            sent = SentBody(endpoint=task, body=await json_body(request), client=request.state.client)
            preparing = models.compiled(sent.endpoint, sent.body, sent.client)
            compiled = await cancel_on_disconnect(request.receive, preparing)
            prepared = compiled.prepared
            form = prepared.form
            request.state.body.hold(len(prepared.images) * len(prepared.prompts) * prepared.choices)
            model = models.of(form.served)
            unloads = isinstance(form.details, OllamaForm) and form.details.done_reason == ollama.UNLOAD
            if not unloads:
                await models.wake(model)
            generation = Generation(models, sent, compiled)
            jobs = len(generation.jobs)
            fields = {"model": form.model, "stream": form.stream, "jobs": jobs, "user": form.user}
            images = {"images": form.image_count} if form.image_count else {}
            metrics.images.inc(form.image_count)
            add_to_log(request.state, **fields, **images, **_warnings_field(form))
            finish = partial(_finish, request, generation)
            if form.stream:
                headers = warning_headers(form.warnings)
                return EventStream(endpoint.stream(model, generation), finish, media_type, headers)
            await _run_to_end(request, generation)
        except ClientDisconnected:
            return Response(status_code=CLIENT_LEFT)

        def content() -> bytes:
            answer: dict[str, Any] | bytes = endpoint.answer(model, generation)
            if isinstance(answer, bytes):
                return answer
            return json.dumps({**answer, **_warnings_field(generation.form)}).encode()

        # In a thread: thousands of tokens with log-probabilities take a while to format.
        headers = warning_headers(generation.form.warnings)
        return Response(await asyncio.to_thread(content), headers=headers, media_type="application/json")

    @_post(app, "/v1/chat/completions", "text", ChatFields)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await generate(chat, request, "chat")

    @_post(app, "/v1/completions", "text", CompletionFields)
    async def text_completions(request: Request) -> Response:
        """Continue a text. With `suffix`, write the missing text between `prompt` and `suffix`.

        With `echo`, return the log-probabilities of the prompt by the causal encoder.
        """
        return await generate(completions, request, "completions")

    @_post(app, "/v1/decide", "text", DecideFields)
    async def decisions(request: Request) -> Response:
        """Choose among several texts, with the probability of each."""
        return await generate(decide, request, "decide")

    @_post(app, "/v1/edits", "text", EditFields)
    async def text_edits(request: Request) -> Response:
        """Rewrite a span of a text."""
        return await generate(edits, request, "edits")

    @_post(app, "/v1/responses", "text", ResponseFields)
    async def text_responses(request: Request) -> Response:
        """Answer a text or a conversation, in the form of OpenAI's Responses API."""
        return await generate(responses, request, "responses")

    @_post(app, "/v1/messages", "text", MessagesFields)
    async def messages(request: Request) -> Response:
        """Answer a conversation, in the form of Anthropic's Messages API."""
        return await generate(anthropic, request, "anthropic")

    @_post(app, "/api/chat", "text", OllamaChatFields)
    async def ollama_chat(request: Request) -> Response:
        """Answer a conversation, in the form of Ollama's API. Without messages, start the model's engine."""
        return await generate(ollama, request, "ollama_chat", LINES)

    @_post(app, "/api/generate", "text", OllamaGenerateFields)
    async def ollama_generate(request: Request) -> Response:
        """Answer or continue a text, or fill the hole before `suffix`, in the form of Ollama's API."""
        return await generate(ollama, request, "ollama_generate", LINES)

    add_llama_cpp_routes(app, models, generate)


def _warnings_field(form: AnswerForm) -> dict[str, Any]:
    return {"warnings": form.warnings} if form.warnings else {}


async def _run_to_end(request: Request, generation: Generation) -> None:
    """Wait for an answer that is sent in one piece."""
    client_left = False
    try:
        await cancel_on_disconnect(request.receive, generation.run())
    except ClientDisconnected:
        client_left = True
        raise
    finally:
        _finish(request, generation, client_left)


def _finish(request: Request, generation: Generation, client_left: bool) -> None:
    """End a generation, and log how it ended and what it used."""
    outcome = generation.finish(client_left=client_left)
    usage = generation.usage()
    error = {} if generation.error is None else generation.error.log_fields
    add_to_log(
        request.state,
        outcome=outcome,
        **error,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        steps=usage["diffusion"]["steps"],
    )


def _add_token_endpoints(app: FastAPI, models: Models) -> None:
    async def convert(endpoint: str, request: Request) -> Response:
        try:
            work = models.reply(endpoint, await json_body(request), request.state.client)
            answer = await cancel_on_disconnect(request.receive, work)
        except ClientDisconnected:
            return Response(status_code=CLIENT_LEFT)
        return Response(answer, media_type="application/json")

    @_post(app, "/tokenize", "tokens", TokenizeFields)
    async def tokenize(request: Request) -> Response:
        """Return the tokens of a text, or of a conversation in the model's chat template.

        With `content` in place of `prompt`, fields and answer are those of llama.cpp's API.
        """
        return await convert("tokenize", request)

    @app.get("/tokenizer_info", tags=["tokens"])
    async def tokenizer_info() -> dict[str, str | None]:
        """Return the special tokens of the main model, by which lm-eval recognizes a server that tokenizes."""
        return {role: models.main.tokenizer.names.get(role) for role in ("bos_token", "eos_token", "pad_token")}

    @_post(app, "/detokenize", "tokens", DetokenizeFields)
    async def detokenize(request: Request) -> Response:
        """Return the text of tokens."""
        return await convert("detokenize", request)

    @_post(app, "/v1/messages/count_tokens", "tokens", MessagesFields)
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a conversation, in the form of Anthropic's API."""
        return await convert("count_tokens", request)

    @_post(app, "/api/show", "models", ShowFields)
    async def show(request: Request) -> Response:
        """Describe one model, in the form of Ollama's API."""
        return await convert("show", request)

    @_post(app, "/api/pull", "models", PullFields)
    async def pull(request: Request) -> Response:
        """Report that a served model is here, in the form of Ollama's API. Nothing is downloaded."""
        return await convert("pull", request)


def _add_operation_endpoints(app: FastAPI, models: Models, metrics: Metrics) -> None:
    supervisor = models.main.supervisor
    started = int(time.time())

    @app.get("/v1/models", tags=["models"])
    async def list_models() -> dict[str, Any]:
        """List the model, its adapters, and the other bundled models."""
        return {"object": "list", "data": [describe(name) for name in models.names]}

    @app.get("/v1/models/{model:path}", tags=["models"])
    async def model(model: str) -> dict[str, Any]:
        """Describe one model."""
        return describe(model)

    @app.get("/api/tags", tags=["models"])
    async def tags() -> dict[str, Any]:
        """List the models, in the form of Ollama's API."""
        return {"models": [ollama.list_entry(name, started) for name in models.names]}

    @app.get("/api/ps", tags=["models"])
    async def running_models() -> dict[str, Any]:
        """List the models whose engines have been started, in the form of Ollama's API."""
        running = [model for model in models.all if model.supervisor.started]
        return {"models": [ollama.running_entry(model.entry.name, model.context) for model in running]}

    @app.get("/api/version", tags=["operation"])
    async def version() -> dict[str, str]:
        """Return the version of Ollama whose API this server follows."""
        return {"version": ollama.VERSION}

    def describe(name: str) -> dict[str, Any]:
        served = models.of(name)
        name = served.entry.served_name(name) or name
        parent = {"parent": served.entry.name} if name != served.entry.name else {}
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "gesso",
            "max_model_len": served.context,
            "vision": served.accepts_images,
            "meta": {"n_ctx_train": served.entry.info.max_length},  # by which llama.vscode recognizes llama.cpp's API
            **parent,
        }

    def engine_message() -> dict[str, str]:
        return {} if supervisor.failure is None else {"message": supervisor.failure}

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, Any]:
        """Return 200 while the server runs, in any state of its engine and its request reader."""
        progress = round(supervisor.progress, 2)
        states = {"engine": supervisor.state, "reader": models.pool.reader.state}
        return {"status": "ok", **states, "progress": progress, **engine_message()}

    @app.get("/ready", tags=["operation"])
    async def ready() -> Response:
        """Return 200 when the server accepts requests, and 503 while its engine or reader loads, stalls or restarts."""
        reader = models.pool.reader.state
        status = supervisor.state if supervisor.state != "ready" else reader
        body: dict[str, Any] = {"status": status, "reader": reader, "progress": round(supervisor.progress, 2)}
        body |= engine_message() | (supervisor.ready.described if supervisor.ready is not None else {})
        ok = status == "ready"
        return JSONResponse(body, 200 if ok else 503, headers={} if ok else {"Retry-After": "1"})

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Return metrics in Prometheus's text format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

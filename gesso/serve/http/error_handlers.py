"""Turn exceptions into HTTP responses."""

import json
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gesso.errors import InputError
from gesso.serve import anthropic, ollama
from gesso.serve.errors import ApiError, from_input


def body(error: ApiError, path: str) -> dict[str, Any]:
    """Return an error in the form of the API that the path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic.error_body(error)
    return ollama.error_body(error) if path.startswith("/api/") else error.body


def respond(error: ApiError, path: str) -> Response:
    # ASCII only: a message may quote half a surrogate pair, which JSON can express and UTF-8 cannot.
    return Response(json.dumps(body(error, path)), error.status, error.headers, "application/json")


async def handle(request: Request, error: Exception) -> Response:
    answer = _api_error(error)
    request.state.log.update(answer.log_fields)
    return respond(answer, request.url.path)


def _api_error(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case InputError():
            return from_input(error)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
    return ApiError(500, "internal error; the server's log has the reason under this request id")


def install(app: FastAPI) -> None:
    for kind in (ApiError, InputError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)

"""Turn exceptions into HTTP responses."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
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
    answer = _api_error(error, request)
    request.state.log.update(answer.log_fields)
    return respond(answer, request.url.path)


def _api_error(error: Exception, request: Request) -> ApiError:
    match error:
        case ApiError():
            return error
        case InputError():
            return from_input(error)
        case HTTPException(status_code=404 | 405) if request.headers.get("upgrade", "").lower() == "websocket":
            return ApiError(501, "this server has no WebSockets; send stream: true", code="not_supported")
        case HTTPException(status_code=404):
            return _unknown_endpoint(request)
        case HTTPException(status_code=405, headers={"Allow": methods}):
            message = f"this endpoint has no method {request.method[:20]!r}; use {methods}"
            return ApiError(405, message, code="method_not_allowed")
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
    raise error  # none: no other kind is installed


def internal_error() -> ApiError:
    """Return the answer to a request that failed by an error in this server."""
    return ApiError(500, "internal error; the server's log has the reason under this request id")


def _unknown_endpoint(request: Request) -> ApiError:
    """Return the error of a path that does not exist, with the endpoints of the same API."""
    routes = [route for route in request.app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    endpoints = sorted(f"{', '.join(sorted(route.methods or ()))} {route.path}" for route in routes)
    first = f"/{request.url.path.split('/')[1]}/"
    similar = [endpoint for endpoint in endpoints if f" {first}" in endpoint]
    unknown = f"{request.method[:20]} {request.url.path[:100]}"
    message = f"there is no endpoint {unknown!r}; there are: {'; '.join(similar or endpoints)}"
    return ApiError(404, message, code="unknown_endpoint")


def install(app: FastAPI) -> None:
    for kind in (ApiError, InputError, HTTPException):
        app.add_exception_handler(kind, handle)

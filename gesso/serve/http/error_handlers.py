"""Turn exceptions into HTTP responses."""

import json

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gesso.errors import InputError
from gesso.serve.errors import ApiError, from_input


def respond(error: ApiError) -> Response:
    # ASCII only: a message may quote half a surrogate pair, which JSON can express and UTF-8 cannot.
    return Response(json.dumps(error.body), error.status, error.headers, "application/json")


async def handle(request: Request, error: Exception) -> Response:
    answer = _api_error(error)
    request.state.log.update(answer.log_fields)
    return respond(answer)


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

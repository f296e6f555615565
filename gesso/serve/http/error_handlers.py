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


def install(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def _(request: Request, error: ApiError) -> Response:
        return respond(error)

    @app.exception_handler(InputError)
    async def _(request: Request, error: InputError) -> Response:
        return respond(from_input(error))

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        return respond(ApiError(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> Response:
        return respond(ApiError(500, "internal error; the server's log has the reason under this request id"))

"""Errors as OpenAI's clients expect them: a status, and {"error": {message, type, param, code}}."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gesso.errors import InputError


class ApiError(Exception):
    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def response(self) -> Response:
        # All of it ASCII: a message may quote half a surrogate pair, which JSON can write and UTF-8 cannot.
        return Response(json.dumps(self.body), self.status, self.headers, "application/json")


def of_input(error: InputError) -> ApiError:
    """Most messages of ours begin with the place: messages[2].content: ..."""
    place, colon, _ = str(error).partition(": ")
    return ApiError(400, str(error), param=place if colon and " " not in place else None)


def _of_validation(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}")
    # pydantic names the branches of a union in the path (`stop`, `list[str]`): a client never wrote those
    name = ".".join(part for part in path if part.isidentifier() or part.isdecimal()) or None
    if first["type"] == "extra_forbidden":
        return ApiError(
            400, f"{name} is not a field this server supports; leave it out", param=name, code="unsupported"
        )
    message = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{name}: {message}" if name else f"the body: {message}", param=name)


def _of_http(error: HTTPException) -> ApiError:
    match error.__cause__:
        case UnicodeDecodeError():
            return ApiError(400, "the body is not UTF-8")
        case RecursionError():
            return ApiError(400, "the body is JSON nested too deeply")
        case ApiError() as cause:
            return cause
    return ApiError(error.status_code, str(error.detail))


def install(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def _(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(InputError)
    async def _(request: Request, error: InputError) -> Response:
        return of_input(error).response()

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        return _of_validation(error).response()

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        return _of_http(error).response()

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server made a mistake; its log has the request id and the reason").response()

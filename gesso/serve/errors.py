"""Errors in the form that OpenAI's clients expect: a status and {"error": {message, type, param, code}}."""

from typing import Any

from pydantic import ValidationError

from gesso.errors import InputError
from gesso.settings import unknown_settings

KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def from_input(error: InputError) -> ApiError:
    """Convert an InputError. If its message begins with a field, as in `messages[2].content: …`, set `param`."""
    place, colon, _ = str(error).partition(": ")
    return ApiError(400, str(error), param=place if colon and " " not in place else None)


def from_validation(error: ValidationError) -> ApiError:
    """Report the first problem that pydantic found, by the name of the field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # pydantic puts the branches of a union into the path (`stop`, `list[str]`); they are not fields.
    path = [str(part) for part in first["loc"]]
    name = ".".join(part for part in path if part.isidentifier() or part.isdecimal()) or None
    if first["type"] == "diffusion_setting":
        return ApiError(400, first["msg"], param=name)  # the message names the setting, as in Python
    if first["type"] == "extra_forbidden" and path[:-1] == ["diffusion"]:
        message = unknown_settings([path[-1][:80]], also=("preset", "pins", "drafts"))
        return ApiError(400, message, param=name, code="unsupported")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{name} is not a supported field; leave it out", param=name, code="unsupported")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name}: {message}" if name else f"the body: {message}", param=name)

"""Errors in the form that OpenAI's clients expect: a status and {"error": {message, type, param, code}}."""

import re
from functools import partial
from typing import Any

from gesso.errors import InputError

REASON_CHARACTERS, PARAM_CHARACTERS = 200, 80  # in the log
_USER_TEXT = re.compile(r"(?<!\w)['\"]|[({\n]|\bgot\b")  # a value follows that a user may have written
# The code of Anthropic's API by which clients send the whole conversation again, without a thread.
THREAD_UNSUPPORTED = "thread_unsupported_request"
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ApiError, **vars(self)), ()  # between replicas

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    @property
    def log_fields(self) -> dict[str, Any]:
        """The error for the log: the message up to the first value that it quotes. The log has no text of users."""
        reason = _USER_TEXT.split(self.message, maxsplit=1)[0]
        param = self.param and self.param[:PARAM_CHARACTERS]
        return {"param": param, "code": self.code, "reason": reason[:REASON_CHARACTERS].rstrip(" ,;:(")}


def from_input(error: InputError) -> ApiError:
    """Convert an InputError. If its message begins with a field, as in `messages[2].content: …`, set `param`."""
    place, colon, _ = str(error).partition(": ")
    return ApiError(400, str(error), param=place if colon and " " not in place else None, code="invalid_value")

"""Read the body of a request."""

from fastapi import Request
from starlette.requests import ClientDisconnect

from gesso.serve.errors import ApiError
from gesso.serve.http.disconnect import ClientDisconnected


async def json_body(request: Request) -> bytes:
    """Return the body. Other content types are rejected because web pages can post them without a CORS preflight."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, "send the body as JSON: the header Content-Type must be application/json")
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientDisconnected from None

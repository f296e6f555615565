"""Read the body of a request, unless a web page could have sent it without permission."""

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from gesso.serve.errors import ApiError
from gesso.serve.http.disconnect import ClientDisconnected

JSON = "application/json"
# What clients of Ollama send with JSON in the body: httpx and requests no type, and curl the type of a form.
UNDECLARED = ("", "application/x-www-form-urlencoded")
# A browser sends Origin with every POST, since 2020 also with forms, and Sec-Fetch-Site to every https or loopback
# address. The others are sent by older browsers. A page can remove none of them without a CORS preflight.
BROWSER_HEADERS = ("origin", "referer", "cookie", "accept-language", "upgrade-insecure-requests")
BROWSER_PREFIXES = ("sec-", "access-control-")
BROWSER_AGENT = "mozilla/"  # how User-Agent begins in every browser


async def json_body(request: Request) -> bytes:
    """Return the body, or reject a content type that a web page can post without a CORS preflight."""
    if not accepts_type(request.url.path, request.headers):
        raise ApiError(400, f"send the body as JSON: the header Content-Type must be {JSON}")
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientDisconnected from None


def accepts_type(path: str, headers: Headers) -> bool:
    """Return whether a body with these headers may be read.

    As Ollama's API, /api/ also takes bodies that are not declared as JSON, unless a browser may have sent them.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON:
        return True
    return path.startswith("/api/") and kind in UNDECLARED and not from_browser(headers)


def from_browser(headers: Headers) -> bool:
    """Return whether a browser may have sent a request with these headers."""
    if headers.get("user-agent", "").strip().lower().startswith(BROWSER_AGENT):
        return True
    return any(name in BROWSER_HEADERS or name.startswith(BROWSER_PREFIXES) for name in headers)

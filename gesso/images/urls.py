"""Images in `data:` URLs (RFC 2397)."""

import base64
import binascii

from gesso.errors import InputError
from gesso.images.read import MAX_BYTES, format_of


def data_of(url: str, where: str) -> bytes:
    """Return the bytes of a `data:` URL in base64. Its media type is ignored: the contents decide. Errors begin with
    `where`.
    """
    head, comma, payload = url.partition(",")
    if not comma or not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        raise InputError(f"{where}: expected a URL like data:image/png;base64,... with the file in base64")
    if len(payload) > 2 * MAX_BYTES:  # with line breaks, base64 is about a third longer than the file
        raise InputError(f"{where}: the URL has more than {MAX_BYTES:,} bytes; make the picture smaller")
    packed = "".join(payload.split())
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{where}: not valid base64 ({error}); encode the whole file again") from None


def data_url(data: bytes) -> str:
    """Return the bytes of a picture as a `data:` URL."""
    return f"data:image/{format_of(data).lower()};base64,{base64.b64encode(data).decode()}"

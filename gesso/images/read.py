"""Read a picture from the bytes of a file that a stranger may have made.

The contents decide the format, never the name of the file. The cost is limited before anything is decoded: see
`limits`. Of an animation, only the first frame is decoded. Warnings of Pillow never reach the caller: each is an error,
or of no concern.
"""

import io
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gesso.errors import InputError
from gesso.images.limits import MAX_PIXELS, check_cost

if TYPE_CHECKING:
    import PIL.Image

MAX_BYTES = 20_000_000
FORMATS = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "WebP": rb"RIFF....WEBP",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM",
    "TIFF": rb"II[*+]\x00|MM\x00[*+]",
}
_EXPORT = "save it as PNG or JPEG"
OTHERS = {
    rb"(\xef\xbb\xbf)?\s*<(!DOCTYPE )?html": "a web page: download the picture itself",
    rb"(\xef\xbb\xbf)?\s*<(svg|\?xml|!--|!DOCTYPE)": f"an SVG or other XML file, which has no pixels: {_EXPORT}",
    rb"%PDF": "a PDF file: save the page as PNG",
    rb"....ftypavi[fs]": f"an AVIF file: {_EXPORT}",
    rb"....ftyp(hei|hev|mif1|msf1)": f"a HEIC file: {_EXPORT}",
    rb"....ftyp": "a video: save a frame of it as PNG or JPEG",
    rb"\xff\x0a|\x00\x00\x00\x0cJXL": f"a JPEG XL file: {_EXPORT}",
}
_silent = threading.Lock()


def open_picture(data: bytes, where: str) -> "PIL.Image.Image":
    """Return the picture in a file, upright and in RGB. Errors begin with `where`."""
    try:
        return _open(data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _open(data: bytes) -> "PIL.Image.Image":
    from PIL import Image, UnidentifiedImageError

    from gesso.images.convert import upright_rgb

    if not data:
        raise InputError("the file is empty; expected a picture")
    if len(data) > MAX_BYTES:
        raise InputError(
            f"the file has {len(data):,} bytes, and at most {MAX_BYTES:,} are allowed; make the picture smaller, or "
            "save it as JPEG"
        )
    kind = format_of(data)
    with _without_warnings():
        try:
            picture = Image.open(io.BytesIO(data), formats=(kind,))
            check_cost(picture, data)
            return upright_rgb(picture)
        except (InputError, MemoryError):
            raise
        except Image.DecompressionBombError:
            raise InputError(f"the picture has more than {MAX_PIXELS:,} pixels; make it smaller") from None
        except Exception as error:  # of any type: decoders raise what they please
            reason = "" if isinstance(error, UnidentifiedImageError) else f" ({str(error)[:200]})"
            raise InputError(f"the {kind} file is damaged or incomplete{reason}; save or download it again") from None


def format_of(data: bytes) -> str:
    """Return the format of a file by its first bytes."""
    for kind, pattern in FORMATS.items():
        if re.match(pattern, data, re.DOTALL):
            return kind
    for pattern, advice in OTHERS.items():
        if re.match(pattern, data[:4096], re.DOTALL | re.IGNORECASE):
            raise InputError(f"this is {advice}")
    raise InputError("this is not a picture in a known format; expected PNG, JPEG, WebP, GIF, BMP or TIFF")


@contextmanager
def _without_warnings() -> Iterator[None]:
    # The filters belong to the process. With the lock, two threads never restore each other's.
    with _silent, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield

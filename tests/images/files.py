"""Picture files of many kinds, made with Pillow."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def drawing(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a smooth picture with some noise, in RGB."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    channels = [x / width, y / height, (x + y) / (width + height)]
    smooth = np.stack(channels, axis=-1) * 200 + rng.integers(0, 56, (height, width, 3))
    return Image.fromarray(smooth.astype(np.uint8))


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def rotated(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def translucent(width: int = 61, height: int = 47) -> Image.Image:
    picture = drawing(width, height).convert("RGBA")
    picture.putalpha(drawing(width, height, seed=1).convert("L"))
    return picture


def gray16(width: int = 60, height: int = 50) -> Image.Image:
    return Image.fromarray(np.linspace(0, 65535, width * height).astype(np.uint16).reshape(height, width))


def files() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of files that the reference and Gesso read alike."""
    rgb = drawing(61, 47)
    for orientation in range(1, 9):
        yield f"JPEG turned {orientation}", encoded(rgb, "JPEG", exif=rotated(orientation))
    yield "PNG turned 6", encoded(rgb, "PNG", exif=rotated(6))
    yield "WebP turned 8", encoded(rgb, "WEBP", exif=rotated(8), lossless=True)
    yield "TIFF turned 3", encoded(rgb, "TIFF", exif=rotated(3))
    yield "JPEG, no such orientation", encoded(rgb, "JPEG", exif=rotated(77))
    for kind in ("PNG", "WEBP", "TIFF"):
        yield f"{kind} RGBA", encoded(translucent(), kind)
    yield "PNG LA", encoded(translucent().convert("LA"), "PNG")
    palette = rgb.quantize(16)
    for kind in ("PNG", "GIF", "BMP", "TIFF"):
        yield f"{kind} palette", encoded(palette, kind)
    yield "PNG palette, one transparent colour", encoded(palette, "PNG", transparency=3)
    yield "PNG palette, translucent colours", encoded(palette, "PNG", transparency=bytes(range(0, 256, 16)))
    yield "GIF transparent", encoded(palette, "GIF", transparency=2)
    yield "PNG, a transparent colour", encoded(rgb, "PNG", transparency=rgb.getpixel((3, 3)))
    yield "PNG gray, a transparent value", encoded(rgb.convert("L"), "PNG", transparency=100)
    yield "PNG interlaced colours", encoded(rgb, "PNG", interlace=1)
    for kind in ("PNG", "BMP", "TIFF"):
        yield f"{kind} 1 bit", encoded(rgb.convert("1"), kind)
    for kind in ("PNG", "JPEG", "BMP", "TIFF", "WEBP"):
        yield f"{kind} gray", encoded(rgb.convert("L"), kind)
    yield "JPEG CMYK", encoded(rgb.convert("CMYK"), "JPEG")
    yield "TIFF CMYK", encoded(rgb.convert("CMYK"), "TIFF")
    yield "TIFF YCbCr", encoded(rgb.convert("YCbCr"), "TIFF")
    yield "JPEG progressive", encoded(rgb, "JPEG", progressive=True)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "jpeg"):
        yield f"TIFF {compression}", encoded(rgb, "TIFF", compression=compression)
    yield "TIFF group4", encoded(rgb.convert("1"), "TIFF", compression="group4")
    frames = [drawing(40, 30, seed) for seed in range(1, 4)]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        yield f"{kind}, several frames", encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    yield "JPEG, several pictures", encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])
    yield "BMP", encoded(rgb, "BMP")
    yield "WebP lossy", encoded(rgb, "WEBP", quality=60)


# Width and height. The last ones are longer than a budget times their width.
SIZES = (
    (1, 1), (48, 48), (47, 49), (768, 768), (800, 600), (4000, 500), (500, 4000), (2000, 30), (1, 700), (3000, 2)
)  # fmt: skip

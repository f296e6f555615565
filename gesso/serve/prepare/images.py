"""Read the images of a request, in the child process that prepares it.

Only `data:` URLs are read here. If the server may fetch others, the child ends with their list, and the server prepares
the request again with their contents: waiting for another server must not take a place of a child that computes.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gesso.chat.image_parts import read_images
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.images.sources import read_source
from gesso.serve.entry import ModelEntry
from gesso.serve.errors import ApiError
from gesso.serve.image_parts import ImageSource, with_tool_images_after
from gesso.serve.remote_images import RemoteImage
from gesso.serve.wire import Readiness

REMOTE_IMAGES = 16  # in one request


class NeedsRemoteImages(Exception):
    """Raised if a request can be prepared only with images of other servers."""

    def __init__(self, images: Sequence[RemoteImage]) -> None:
        super().__init__(f"{len(images)} images must be fetched")
        self.images = images


class ImageReader:
    """Reads images for one model. `fetched` has the contents of URLs, or None if they have not been fetched yet."""

    def __init__(
        self, entry: ModelEntry, readiness: Readiness, fetched: Mapping[str, memoryview] | None = None
    ) -> None:
        self.entry, self.context, self.fetched = entry, readiness.max_length, fetched
        self.accepts_images = entry.may_see and readiness.vision
        self.remote: dict[str, RemoteImage] = {}  # to be fetched, by URL
        self.tokens = self.size = 0  # of all images so far

    def read(self, messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return messages whose images are prepared. Raise `NeedsRemoteImages` if some must be fetched first."""
        if not isinstance(messages, list):
            return messages
        if self.fetched is None:
            read_images(messages, self._note_remote)
            if len(self.remote) > REMOTE_IMAGES:
                where = list(self.remote.values())[REMOTE_IMAGES].where
                raise InputError(f"{where}: at most {REMOTE_IMAGES} images are fetched for a request; send fewer URLs")
            if self.remote:
                raise NeedsRemoteImages(list(self.remote.values()))
        return with_tool_images_after(read_images(messages, self._read))

    def _note_remote(self, source: Any, where: str, budget: int | None) -> Any:
        url, where = self._checked(source, where)
        if is_remote(url):
            self.remote.setdefault(url, RemoteImage(url, where))

    def _read(self, source: Any, where: str, budget: int | None) -> Image:
        url, where = self._checked(source, where)
        vision = self.entry.info.config.vision
        with _silent():
            image = read_source(
                bytes((self.fetched or {})[url]) if is_remote(url) else url,
                where,
                budget,
                patch=vision.patch_size,
                pool=vision.pooling_kernel_size,
                positions=vision.position_embedding_size,
            )
        self.tokens, self.size = self.tokens + image.tokens, self.size + image.patches.nbytes
        if self.tokens > self.context:  # now, not after thousands of others
            raise ApiError(
                400,
                f"{where}: the images up to this one have {self.tokens} tokens. This model's maximum context length "
                f"is {self.context} tokens; send fewer images, or give them a smaller budget of tokens",
                param=where,
                code="context_length_exceeded",
            )
        limit = self.entry.settings.limits.image_bytes
        if self.size > limit:
            raise InputError(
                f"{where}: the images up to this one have {self.size:,} bytes of pixels, and the limit is {limit:,}; "
                "send fewer images, or give them a smaller budget of tokens"
            )
        return image

    def _checked(self, source: Any, where: str) -> tuple[str, str]:
        """Return the URL of an image and the path of its field, or reject it."""
        if isinstance(source, ImageSource):
            source, where = source.url, source.where
        if not self.accepts_images:
            raise InputError(
                f"{where}: the model {self.entry.name!r} sees no images; leave the image out, or choose one with "
                "vision: true in /v1/models"
            )
        if isinstance(source, str) and re.match("data:", source, re.IGNORECASE):
            return source, where
        if not is_remote(source):
            raise InputError(
                f"{where}: expected a URL like data:image/png;base64,... with the file in base64; a server opens no "
                "files of its own"
            )
        if not self.entry.settings.remote_images:
            raise InputError(
                f"{where}: this server fetches no images; send the image as a data: URL, or start the server with "
                "--allow-remote-images"
            )
        return source, where


def warm_up() -> None:
    """Import the decoders, so that no child has to."""
    import PIL.Image

    import gesso.images.convert  # noqa: F401

    PIL.Image.init()


def is_remote(source: Any) -> bool:
    return isinstance(source, str) and re.match("https?:", source, re.IGNORECASE) is not None


@contextmanager
def _silent() -> Iterator[None]:
    """Discard the output of decoders: libtiff writes messages about damaged files to stderr, which is the log."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)

"""Images in messages: content parts of type `image` and `image_url`.

A part names its image by a source, such as a path or a `data:` URL. `read_images` replaces sources by prepared images,
which `check_messages` accepts and the tokenizer places in the prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gesso.checks import shown
from gesso.errors import InputError
from gesso.images.budgets import BUDGETS, DETAILS
from gesso.images.image import Image

# Other content parts that clients send, and what to do instead.
_AUDIO = "the model reads no audio; send its transcript as text"
_VIDEO = "the model reads no video; send frames of it as images"
_FILE = "files are not read; send the text, or a page as an image"
REFUSED = (
    dict.fromkeys(("audio", "input_audio", "audio_url"), _AUDIO)
    | dict.fromkeys(("video", "input_video", "video_url"), _VIDEO)
    | dict.fromkeys(("file", "input_file", "document"), _FILE)
)

T = TypeVar("T")
# Returns an image, given its source, the path of its field for errors, and its budget if the part has one.
Read = Callable[[Any, str, int | None], Image]


def read_images(messages: Sequence[T], read: Read) -> Sequence[T]:
    """Return messages in which every image is read. Whatever is not an image is neither changed nor checked."""
    if not isinstance(messages, list | tuple):
        return messages
    return [_read_message(message, f"messages[{index}].content", read) for index, message in enumerate(messages)]


def _read_message(message: Any, where: str, read: Read) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    parts = [_read_part(part, f"{where}[{index}]", read) for index, part in enumerate(content)]
    return {**message, "content": parts}


def _read_part(part: Any, where: str, read: Read) -> Any:
    if not isinstance(part, Mapping) or part.get("type") not in ("image", "image_url"):
        return part
    if part["type"] == "image":
        if unknown := part.keys() - {"type", "image", "tokens"}:
            raise InputError(f"{where}: an image has the fields type, image and tokens, not {min(map(str, unknown))!r}")
        if part.get("image") is None:
            raise InputError(f"{where}.image: expected a path, bytes, a data: URL or a Pillow image")
        return {"type": "image", "image": read(part["image"], f"{where}.image", _budget(part, {}, where))}
    given = part.get("image_url")
    fields = {"url": given} if isinstance(given, str) else given
    if not isinstance(fields, Mapping) or not isinstance(fields.get("url"), str):
        raise InputError(f"{where}.image_url: expected an object like {{'url': 'data:image/png;base64,...'}}")
    return {"type": "image", "image": read(fields["url"], f"{where}.image_url.url", _budget(part, fields, where))}


def _budget(part: Mapping[str, Any], detailed: Mapping[str, Any], where: str) -> int | None:
    tokens, detail = part.get("tokens"), detailed.get("detail")
    if tokens is not None and (isinstance(tokens, bool) or tokens not in BUDGETS):
        raise InputError(f"{where}.tokens: expected one of {', '.join(map(str, BUDGETS))}, got {shown(tokens)}")
    if detail is not None and not (isinstance(detail, str) and detail in DETAILS):
        raise InputError(f"{where}.image_url.detail: expected one of {', '.join(DETAILS)}, got {shown(detail)}")
    return tokens if tokens is not None or detail is None else DETAILS[detail]


def check_part(part: Any, where: str) -> dict[str, Any]:
    """Return a checked copy of a content part: text, or an image that has been read."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": plain_text(part["text"])}
    if isinstance(part, Mapping) and kind == "image" and isinstance(part.get("image"), Image):
        return {"type": "image", "image": part["image"]}
    if isinstance(kind, str) and kind in REFUSED:
        raise InputError(f"{where}: {REFUSED[kind]}")
    if kind in ("image", "image_url"):
        raise InputError(
            f"{where}: the image has not been read; only chats take images, gesso.chat.image_parts reads them"
        )
    raise InputError(f"{where}: expected {{'type': 'text', 'text': ...}} or {{'type': 'image', 'image': ...}}")


def plain_text(text: str) -> str:
    """Return a text of type str and no other, whose methods a template could reach."""
    return str.__str__(text)


def images_of(messages: Sequence[Mapping[str, Any]]) -> tuple[Image, ...]:
    """Return the images of checked messages, in order."""
    contents = (message["content"] for message in messages)
    return tuple(
        part["image"] for content in contents if isinstance(content, list) for part in content if "image" in part
    )


def for_template(content: Any) -> Any:
    """Return the content of a checked message with nothing but JSON: a template has no use for pixels."""
    if not isinstance(content, list):
        return content
    return [part if part["type"] == "text" else {"type": "image"} for part in content]


def as_text(content: Any, mark: str) -> Any:
    """Return the content of a message as one text with `mark` in place of every image."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] if part["type"] == "text" else mark for part in content)

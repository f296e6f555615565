"""Content parts with images, as the dialects of the server translate them for `gesso.chat.image_parts`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ImageSource:
    """An image as a client sent it: its URL, and the path of its field for errors."""

    url: str
    where: str


def image_part(url: str, where: str, tokens: int | None = None) -> dict[str, Any]:
    return {"type": "image", "image": ImageSource(url, where), "tokens": tokens}


def base64_part(data: str, where: str, tokens: int | None = None) -> dict[str, Any]:
    return image_part(f"data:;base64,{data}", where, tokens)


def content_of(parts: Iterable[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return parts as the content of a message: one text if there is no image."""
    found = list(parts)
    return found if any(map(is_image, found)) else "".join(part["text"] for part in found)


def with_tool_images_after(messages: Iterable[Any]) -> list[Any]:
    """Return messages in which the images of tool results follow the results, in a message of the user.

    Chat templates show a result as text. If the user's message follows, the images are its first parts.
    """
    moved: list[Any] = []
    images: list[dict[str, Any]] = []
    for message in messages:
        if not isinstance(message, dict):
            return list(messages)  # which is rejected later
        content = message.get("content")
        if message.get("role") == "tool":
            parts = content if isinstance(content, list) else []
            if found := [part for part in parts if is_image(part)]:
                images += found
                message = {**message, "content": [part for part in parts if not is_image(part)]}
        elif images:
            if message.get("role") == "user" and isinstance(content, str | list):
                text = [{"type": "text", "text": content}] if isinstance(content, str) else content
                message = {**message, "content": [*images, *text]}
            else:
                moved.append({"role": "user", "content": images})
            images = []
        moved.append(message)
    return [*moved, {"role": "user", "content": images}] if images else moved


def is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("image", "image_url")

"""The structure of a document: the HTML of Markdown, the value of JSON."""

import json
import re
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt

KINDS = ("markdown", "json")
PARSER = MarkdownIt("commonmark").enable("table")
TAG = re.compile(r"<[^>]+>")


def value(text: str) -> Any:
    """Return the value of a JSON text, or None if it is not JSON. The excerpts are objects and arrays."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def html(text: str) -> str:
    return PARSER.render(text)


def is_same(kind: str, text: str, other: str) -> bool:
    """Return whether two documents mean the same: equal HTML, or equal JSON values."""
    if kind == "markdown":
        return html(text) == html(other)
    found = value(text)
    return found is not None and json.dumps(found) == json.dumps(value(other))


def is_broken(kind: str, text: str, original: str) -> bool:
    """Return whether a text has another structure than the original.

    Markdown accepts every text, so its structure is the sequence of HTML tags. A text in which only visible characters
    differ is not broken.
    """
    if kind == "markdown":
        return TAG.findall(html(text)) != TAG.findall(html(original))
    return not is_same(kind, text, original)

"""Fields that clients send and this server does not have: accepted silently, ignored with a warning, or rejected.

A field that cannot change the answer is accepted. A hint without an equivalent in this server is ignored, and the
answer carries a warning. A field is rejected if the answer would lack something that the client relies on: input that
the model never saw, a constraint that was not enforced, or a different form of the answer. `gesso serve --strict`
rejects every field that would be ignored with a warning.
"""

from collections.abc import Sequence
from typing import Any

from gesso.serve.fields import OFF, Fields, StreamOptions, is_off

HARMLESS = frozenset(
    {
        "metadata", "store", "service_tier", "safety_identifier", "prediction", "priority", "request_id",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_salt", "include_obfuscation",
        "spaces_between_special_tokens",
    }
)  # fmt: skip
REJECTED = frozenset(
    {
        # input of the model
        "messages", "prompt", "suffix", "input", "documents", "images", "image_data", "audio", "modalities",
        "web_search_options", "tools", "tool_choice", "functions", "function_call", "chat_template",
        "continue_final_message",
        # constraints
        "json_schema", "response_format", "format", "grammar", "allowed_token_ids",
        # form of the answer
        "best_of", "echo", "prompt_logprobs",
    }
)  # fmt: skip
UNSUPPORTED = "this server does not support it"
_NO_ORDER = "the tokens of a canvas are drawn together, so none is earlier than another and could lower its probability"
REASONS = {
    "frequency_penalty": _NO_ORDER,
    "presence_penalty": _NO_ORDER,
    "repetition_penalty": _NO_ORDER,
    "repeat_penalty": _NO_ORDER,
    "logit_bias": "a canvas is drawn from the model's own predictions; choice, regex and grammar allow or exclude text",
}
WARNINGS = 16  # in one answer
NAME_CHARACTERS, HEADER_CHARACTERS = 40, 1000
SCHEMA_CHARACTERS = 160
HEADER = "X-Gesso-Warnings"


def without_unsupported(fields: type[Fields], body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body without unsupported fields, and the reason by name for those that a client may rely on.

    Fields that must be rejected stay in the body. The objects inside it are not searched, except for stream_options: a
    loss in `response_format`, `tool_choice` or `diffusion` would change the answer.
    """
    supported, names = _split(fields, body)
    if isinstance(options := supported.get("stream_options"), dict):
        supported["stream_options"], inside = _split(StreamOptions, options)
        names += [f"stream_options.{name}" for name in inside]
    return supported, {name: REASONS.get(name, UNSUPPORTED) for name in names}


def _split(fields: type[Fields], body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields to keep, and the names of those to ignore with a warning."""
    fields_to_keep: dict[str, Any] = {}
    ignored: list[str] = []
    supported = fields.model_fields
    for name, value in body.items():
        if name in supported:
            fields_to_keep[name] = value
        elif _has_no_effect(name, value):
            continue
        elif name in REJECTED:
            fields_to_keep[name] = value
        else:
            ignored.append(name)
    return fields_to_keep, ignored


def _has_no_effect(name: str, value: Any) -> bool:
    return value is None or name in HARMLESS or (is_off(name, value) if name in OFF else not value)


def warnings_of(ignored: dict[str, str]) -> list[str]:
    """Return a bounded number of warnings, in ASCII without control characters. A client chose the names."""
    shown = list(ignored.items())[:WARNINGS]
    texts = [f"{ascii(name[:NAME_CHARACTERS])[1:-1]} was ignored: {reason}" for name, reason in shown]
    more = len(ignored) - len(shown)
    return [*texts, f"{more} more fields were ignored"] if more else texts


def warnings_of_schema(texts: Sequence[str]) -> list[str]:
    """Return a bounded number of warnings about a JSON schema, in ASCII without control characters."""
    shown = [f"schema: {ascii(text[:SCHEMA_CHARACTERS])[1:-1]}" for text in texts[:WARNINGS]]
    more = len(texts) - len(shown)
    return [*shown, f"{more} more warnings about the schema"] if more else shown


def warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    return {HEADER: "; ".join(warnings)[:HEADER_CHARACTERS]} if warnings else {}

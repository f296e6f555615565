"""Prepare the requests of llama.cpp's API: cut the text around a hole to the context, and tokenize."""

import json
from collections.abc import Sequence
from typing import Any

from gesso.chat.prompt import Prompt
from gesso.infill.boundary import nearest_end, nearest_start
from gesso.serve.errors import ApiError
from gesso.serve.llama_cpp import InfillFields, LlamaCppCompletionFields, LlamaCppFields, LlamaCppTokenizeFields
from gesso.serve.prepare.builder import RequestBuilder, checked_by
from gesso.serve.prepare.frontend import ModelFrontend, frontend_of

Outcome = tuple[bytes, bytes]
SUFFIX_SHARE = 4  # the text after a hole gets at most one in so many tokens of the context, if it has to be cut
MARGIN = 32  # tokens for markers, and because a text that was cut may have more tokens than before


def infill(
    task: dict[str, Any], fields: InfillFields, warnings: list[str], frontends: Sequence[ModelFrontend]
) -> Outcome:
    builder = RequestBuilder(task, fields, frontends)
    return _hole(builder, fields, fields.before, fields.input_suffix, warnings, indent=fields.n_indent)


def completion(
    task: dict[str, Any], fields: LlamaCppCompletionFields, warnings: list[str], frontends: Sequence[ModelFrontend]
) -> Outcome:
    builder = RequestBuilder(task, fields, frontends)
    if fields.hole is not None:
        before, after = fields.hole
        return _hole(builder, fields, before, after, warnings, indent=0)
    if not fields.prompt:
        raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
    tokens = builder.text_tokens(fields.prompt) if isinstance(fields.prompt, str) else fields.prompt
    most = fields.most_tokens
    if most is not None:
        most = min(most, max(1, builder.context - len(tokens)))
    return builder.build(
        [Prompt(tokens)] if most != 0 else [],
        n=fields.n_cmpl,
        max_tokens=most,
        stop=fields.stop,
        seconds=fields.seconds,
        constraint=builder.constraint(fields.constraint),
        warnings=warnings,
        echo=_echo(builder, fields, most, truncated=False, indent=0),
        checked_by=checked_by(fields.constraint),
    )


def tokenize(task: dict[str, Any], fields: LlamaCppTokenizeFields, frontends: Sequence[ModelFrontend]) -> Outcome:
    frontend = frontend_of(frontends, fields.model)
    frontend.check_size(len(fields.content), task["contexts"][frontend.name], "content")
    tokens: list[Any] = frontend.tokenizer.encode(fields.content, bos=fields.add_special)
    if fields.with_pieces:
        pieces = frontend.tokenizer.pieces(tokens)
        tokens = [{"id": token, "piece": piece} for token, piece in zip(tokens, pieces, strict=True)]
    return b"{}", json.dumps({"tokens": tokens}).encode()


def _hole(
    builder: RequestBuilder, fields: LlamaCppFields, before: str, after: str, warnings: list[str], *, indent: int
) -> Outcome:
    """Prepare a request for the text between two texts, of which the nearest parts are shown to the model.

    Without text around the hole, or without tokens to write, the answer is empty: editors send such requests while
    nobody waits for a text.
    """
    most, frontend = fields.most_tokens, builder.frontend
    canvas = frontend.config.canvas_length
    if most is not None:
        most = min(most, builder.context // 2)
    room = builder.context - max(canvas, most or frontend.defaults.max_new_tokens) - MARGIN
    if room < SUFFIX_SHARE:
        raise ApiError(
            400, f"n_predict: it leaves no room for the text around the hole in a context of {builder.context}"
        )
    shown_after = nearest_start(frontend.tokenizer, after, room // SUFFIX_SHARE)
    after_tokens = frontend.tokenizer.encode(shown_after, bos=False)
    shown_before = nearest_end(frontend.tokenizer, before, max(1, room - len(after_tokens)))
    tokens = [*frontend.tokenizer.encode(shown_before), *after_tokens]
    is_empty = most == 0 or not (before.strip() or after.strip())
    return builder.build(
        [] if is_empty else [Prompt(tokens)],
        n=fields.n_cmpl,
        max_tokens=most,
        stop=fields.stop,
        hole={"prefix": shown_before, "suffix": shown_after, "candidates": 1},
        seconds=fields.seconds,
        warnings=warnings,
        echo=_echo(
            builder,
            fields,
            most,
            truncated=(shown_before, shown_after) != (before, after),
            indent=indent,
        ),
    )


def _echo(
    builder: RequestBuilder, fields: LlamaCppFields, most: int | None, *, truncated: bool, indent: int
) -> dict[str, Any]:
    """Return what the answer repeats."""
    settings = {
        "n_ctx": builder.context,
        "n_predict": -1 if most is None else most,
        "temperature": fields.temperature,
        "stop": fields.stop,
        "stream": fields.stream,
    }
    return {
        "settings": settings,
        "truncated": truncated,
        "n_indent": indent,
        "response_fields": fields.response_fields,
    }

"""Prepare the requests of llama.cpp's API: cut the text around a hole to the context, and tokenize."""

import json
from collections.abc import Sequence
from typing import Any

from gesso.errors import TextOverflow
from gesso.infill.boundary import nearest_end, nearest_start
from gesso.request.spec import HoleSpec
from gesso.serve.entry import ModelEntry, entry_of
from gesso.serve.errors import ApiError
from gesso.serve.form import LlamaCppForm
from gesso.serve.llama_cpp import InfillFields, LlamaCppCompletionFields, LlamaCppFields, LlamaCppTokenizeFields
from gesso.serve.prepare.builder import ClientRequest, Preparation, text_too_long
from gesso.serve.wire import Prepare, Prepared, Reply

SUFFIX_SHARE = 4  # the text after a hole gets at most one in so many tokens of the context, if it has to be cut
MARGIN = 32  # tokens for markers, and because a text that was cut may have more tokens than before


def infill(preparation: Preparation, fields: InfillFields, warnings: list[str]) -> Prepared:
    return _hole(preparation, fields, fields.before, fields.input_suffix, warnings, indent=fields.n_indent)


def completion(preparation: Preparation, fields: LlamaCppCompletionFields, warnings: list[str]) -> Prepared:
    if fields.hole is not None:
        before, after = fields.hole
        return _hole(preparation, fields, before, after, warnings, indent=0)
    if not fields.prompt:
        raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
    tokens = preparation.text_tokens(fields.prompt) if isinstance(fields.prompt, str) else fields.prompt
    context = preparation.info.max_length
    most = fields.most_tokens
    if most is not None:
        most = min(most, max(1, context - len(tokens)))
    form = preparation.form(
        stream=fields.stream,
        warnings=warnings,
        details=_details(context, fields, most, truncated=False, indent=0),
    )
    specs = []
    if most != 0:
        specs = [preparation.spec(fields, tokens, constraint=fields.constraint, max_new_tokens=most, stop=fields.stop)]
    request = ClientRequest(specs=specs, choices=fields.n_cmpl, seconds=fields.seconds, form=form)
    return preparation.texts(fields, request)


def tokenize(task: Prepare, fields: LlamaCppTokenizeFields, entries: Sequence[ModelEntry]) -> Reply:
    entry = entry_of(entries, fields.model)
    try:
        entry.info_at(task.models[entry.name].readiness).check_size(len(fields.content))
    except TextOverflow as error:
        raise text_too_long(error, "content") from None
    tokens: list[Any] = entry.tokenizer.encode(fields.content, bos=fields.add_special)
    if fields.with_pieces:
        pieces = entry.tokenizer.pieces(tokens)
        tokens = [{"id": token, "piece": piece} for token, piece in zip(tokens, pieces, strict=True)]
    return Reply(json.dumps({"tokens": tokens}).encode())


def _hole(
    preparation: Preparation, fields: LlamaCppFields, before: str, after: str, warnings: list[str], *, indent: int
) -> Prepared:
    """Prepare a request for the text between two texts, of which the nearest parts are shown to the model.

    Without text around the hole, or without tokens to write, the answer is empty: editors send such requests while
    nobody waits for a text.
    """
    info = preparation.info
    most = fields.most_tokens
    if most is not None:
        most = min(most, info.max_length // 2)
    room = info.max_length - max(info.config.canvas_length, most or info.defaults.max_new_tokens) - MARGIN
    if room < SUFFIX_SHARE:
        raise ApiError(
            400, f"n_predict: it leaves no room for the text around the hole in a context of {info.max_length}"
        )
    shown_after = nearest_start(info.tokenizer, after, room // SUFFIX_SHARE)
    after_tokens = info.tokenizer.encode(shown_after, bos=False)
    shown_before = nearest_end(info.tokenizer, before, max(1, room - len(after_tokens)))
    tokens = [*info.tokenizer.encode(shown_before), *after_tokens]
    truncated = (shown_before, shown_after) != (before, after)
    form = preparation.form(
        stream=fields.stream,
        warnings=warnings,
        details=_details(info.max_length, fields, most, truncated=truncated, indent=indent),
    )
    is_empty = most == 0 or not (before.strip() or after.strip())
    specs = [] if is_empty else [preparation.spec(fields, tokens, max_new_tokens=most, stop=fields.stop)]
    hole = HoleSpec(prefix=shown_before, suffix=shown_after, seconds=fields.seconds)
    request = ClientRequest(specs=specs, choices=fields.n_cmpl, hole=hole, form=form)
    return preparation.texts(fields, request)


def _details(context: int, fields: LlamaCppFields, most: int | None, *, truncated: bool, indent: int) -> LlamaCppForm:
    """Return what the answer repeats."""
    settings = {
        "n_ctx": context,
        "n_predict": -1 if most is None else most,
        "temperature": fields.temperature,
        "stop": fields.stop,
        "stream": fields.stream,
    }
    return LlamaCppForm(settings=settings, truncated=truncated, n_indent=indent, response_fields=fields.response_fields)

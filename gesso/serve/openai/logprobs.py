"""Log-probabilities of the tokens of an answer, in the two forms OpenAI has for them.

They come from the step in which a canvas converged, at that step's temperature, for every token of the answer, tags and
thoughts included. Tokens that settled earlier were fixed in that step; their log-probabilities are its predictions too.
"""

from itertools import accumulate
from typing import Any

from gesso.chat.tokenizer import Tokenizer
from gesso.serve.jobs import Job
from gesso.serve.protocol import Ended


def chat_logprobs(tokenizer: Tokenizer, job: Job, ended: Ended) -> dict[str, Any]:
    content = []
    for token, (own, top) in zip(ended.tokens, job.logprobs, strict=True):
        others = [_entry(tokenizer, other, value) for other, value in top]
        content.append({**_entry(tokenizer, token, own), "top_logprobs": others})
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, job: Job, ended: Ended) -> dict[str, Any]:
    pieces = [_piece(tokenizer, token) for token in ended.tokens]
    # Special tokens are not part of the text.
    lengths = [0 if token in tokenizer.special_ids else len(p) for token, p in zip(ended.tokens, pieces, strict=True)]
    offsets = list(accumulate(lengths, initial=0))[:-1]
    tops = [{_piece(tokenizer, other): value for other, value in top} for _, top in job.logprobs]
    values = [own for own, _ in job.logprobs]
    return {"tokens": pieces, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    piece = _piece(tokenizer, token)
    return {"token": piece, "logprob": value, "bytes": list(piece.encode())}


def _piece(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.pieces([token])[0] if token < tokenizer.vocab_size else ""

"""Log-probabilities of the tokens of an answer, in OpenAI's two forms.

They are the predictions of the step in which a canvas converged, at that step's temperature. There is one per token of
the answer, including tags and thinking. A token that settled earlier is fixed in that step, and its log-probability
comes from the same prediction.

With `echo`, they are those of the causal encoder, which predicts each token from those before it. The first token has
none.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from gesso.chat.tokenizer import Tokenizer
from gesso.serve.jobs import AnswerJob
from gesso.serve.wire import Ended


def chat_logprobs(tokenizer: Tokenizer, job: AnswerJob, ended: Ended) -> dict[str, Any]:
    content = []
    for token, (own, top) in zip(ended.tokens, job.logprobs, strict=True):
        others = [_entry(tokenizer, other, value) for other, value in top]
        content.append({**_entry(tokenizer, token, own), "top_logprobs": others})
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, job: AnswerJob, ended: Ended) -> dict[str, Any]:
    texts = [_token_text(tokenizer, token) for token in ended.tokens]
    # Special tokens are not part of the text.
    lengths = [0 if token in tokenizer.special_ids else len(t) for token, t in zip(ended.tokens, texts, strict=True)]
    offsets = list(accumulate(lengths, initial=0))[:-1]
    tops = [
        None if own is None else _top(tokenizer, text, own, top)
        for text, (own, top) in zip(texts, job.logprobs, strict=True)
    ]
    values = [own for own, _ in job.logprobs]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _top(tokenizer: Tokenizer, text: str, own: float, top: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Return the most likely tokens at a position, and the token of the answer if it is not among them.

    Clients look the token up here, and take the maximum, which an empty list does not have.
    """
    values = {_token_text(tokenizer, other): value for other, value in top}
    return values if text in values else {**values, text: own}


def _entry(tokenizer: Tokenizer, token: int, value: float | None) -> dict[str, Any]:
    text = _token_text(tokenizer, token)
    return {"token": text, "logprob": value, "bytes": list(text.encode())}


def _token_text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.pieces([token])[0] if token < tokenizer.vocab_size else ""

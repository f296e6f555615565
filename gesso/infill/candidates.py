"""Choose among several candidates for one text by their likelihood."""

from collections.abc import Sequence
from dataclasses import replace

from gesso.engine.events import Result
from gesso.engine.plan import Plan, candidates_of, generate, score, total_usage
from gesso.engine.request import Request
from gesso.infill.holes import fill_sides
from gesso.request.info import ModelInfo

SCORED = 128  # tokens after a hole that count in the score of a candidate


def likeliest(info: ModelInfo, request: Request, count: int) -> Plan[Result]:
    """Return the candidate with the likeliest text by the causal encoder; its usage covers all candidates."""
    results = yield from generate(candidates_of(request, count))
    if count == 1:
        return results[0]
    scores = yield from log_likelihoods(info, request, [result.text for result in results])
    best = scores.index(max(scores))
    usages = [result.usage for result in results]
    return replace(results[best], usage=total_usage(usages, results[best].usage.completion_tokens))


def log_likelihoods(info: ModelInfo, request: Request, texts: Sequence[str]) -> Plan[list[float]]:
    """Return the log-probability of each text as an answer to a request's prompt, by the causal encoder, in nats.

    For a prompt with a hole: log p(text and the text after the hole | text before the hole), without markers. The
    likelihood of the text after the hole says more about a candidate than its own. Sums compare candidates of different
    lengths fairly, see `infill._search`. For any other prompt: log p(text and its end | prompt).

    The text is encoded again: its likelihood must not depend on the tokens that it was generated with.
    """
    sides = fill_sides(info.tokenizer, request.prompt)
    before: Sequence[int] = request.prompt
    after = ""
    end = [info.eos_token_id]
    if sides is not None:
        before = sides[0]
        after = info.tokenizer.text_of(sides[1][:SCORED])
        end = []
    encoded = {text: [*info.tokenizer.encode(text + after, bos=False), *end] for text in dict.fromkeys(texts)}
    scores = yield from score(before, list(encoded.values()), info.max_length, request.adapter)
    score_of = dict(zip(encoded, scores, strict=True))
    return [score_of[text] for text in texts]

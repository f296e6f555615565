"""Turn requests for log-probabilities into jobs for the engine: decisions, and prompts to echo."""

from collections.abc import Sequence
from dataclasses import replace

from gesso.chat.prompt import Prompt
from gesso.engine.decision import choice_tokens, decision_request
from gesso.engine.request import Score
from gesso.serve.errors import ApiError
from gesso.serve.openai.text_fields import CompletionFields, DecideFields
from gesso.serve.packed_images import pack
from gesso.serve.prepare.builder import Builder
from gesso.serve.prepare.request import PreparedJob
from gesso.serve.protocol import Submit, submit_payload

VALUES = 2**18  # log-probabilities in the answer to one request; more would hold up the server


def decision(builder: Builder[DecideFields]) -> tuple[bytes, bytes]:
    """Return the encoded request for a decision: one job, whatever the number of choices."""
    fields, frontend = builder.fields, builder.frontend
    if fields.messages is not None:
        question = builder.chat_prompt(fields.messages)
    elif fields.prompt:
        question = Prompt(builder.text_tokens(fields.prompt))
    else:
        raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
    frontend.check_size(max(map(len, fields.choices)), builder.context, "choices")
    texts = choice_tokens(frontend.tokenizer, fields.choices)
    eos = frozenset(frontend.defaults.eos_token_ids if fields.messages is not None else ())
    prompt, usual = question.tokens, frontend.defaults.max_new_tokens
    request = decision_request(prompt, texts, eos, frontend.config, usual, builder.context, builder.adapter)
    request = replace(request, images=question.images)
    request.check(frontend.config, builder.context)
    builder.check_length(len(prompt), request.max_new_tokens)
    shapes, images = pack(question.images)
    submit = Submit(
        id=0, prompt=prompt, options={}, adapter=builder.adapter, choices=texts, ends=bool(eos), images=shapes
    )
    job = PreparedJob(
        prompt=0, prompt_tokens=len(prompt), max_new_tokens=request.max_new_tokens, payload=submit_payload(submit)
    )
    return builder.encoded([job], echo={"choices": fields.choices}, images=images, image_count=len(question.images))


def echo(builder: Builder[CompletionFields], prompts: Sequence[Sequence[int]]) -> tuple[bytes, bytes]:
    """Return the encoded request for the log-probabilities of prompts: one job per prompt."""
    fields = builder.fields
    top, new = fields.logprobs or 0, fields.max_tokens or 0
    if sum(map(len, prompts)) * (1 + top) > VALUES:
        tokens = sum(map(len, prompts))
        message = f"{tokens} tokens with logprobs: {top} exceed {VALUES} log-probabilities per request; send fewer"
        raise ApiError(400, message, param="prompt")
    jobs = []
    for index, prompt in enumerate(prompts):
        Score(prompt=tuple(prompt), texts=((0,),)).check(builder.frontend.config, builder.context)
        builder.check_length(len(prompt), new)
        submit = Submit(id=0, prompt=list(prompt), options={}, adapter=builder.adapter, echo=(top, new))
        job = PreparedJob(prompt=index, prompt_tokens=len(prompt), max_new_tokens=new, payload=submit_payload(submit))
        jobs.append(job)
    return builder.encoded(jobs, logprobs=True)

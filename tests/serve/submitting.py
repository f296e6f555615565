"""Messages that have the engine process of a server write a text."""

from gesso.constraints.regex import regex_term
from gesso.constraints.stored import to_bytes
from gesso.request.build import build
from gesso.request.spec import RequestSpec
from gesso.serve.wire import GuideKey, Submit, WireRequest, WriteText, work_to_bytes


def submit(g, id, prompt, *, seed=1, regex=None, max_new_tokens=16, **settings):
    """Return the message for a text after the tokens of a prompt. A `regex` is compiled here."""
    request = build(RequestSpec(prompt=prompt, max_new_tokens=max_new_tokens, settings=settings), g.info, list)
    guide = None if regex is None else GuideKey(regex, False)
    work = WriteText(request=WireRequest.of(request, ()), guide=guide)
    term = b"" if regex is None else to_bytes(regex_term(regex))
    return Submit(id=id, seed=seed, work=work_to_bytes(work), term=memoryview(term))

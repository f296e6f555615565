"""Prepare requests in this process, as the children of a server's request reader do."""

import json

from gesso.serve.entry import ModelEntry
from gesso.serve.errors import ApiError
from gesso.serve.prepare import endpoints
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.serve.wire import ModelState, NeedsImages, Prepare, Prepared, Readiness, Reply, RequestRejected, work_of

CONTEXT = 256


def entry(directory, *, strict=False, **limits):
    """Return the model in a directory as a server named `tiny` knows it."""
    engine = EngineSettings(model=str(directory))
    return ModelEntry(ServerSettings(engine=engine, name="tiny", limits=ServerLimits(**limits), strict=strict))


def task(entries, endpoint, body, *, context=CONTEXT, vision=False, fetched=None):
    """Return the work of a child for a body, given as JSON values."""
    readiness = Readiness(max_length=context, write="canvas", canvas_length=None, vision=vision)
    models = {one.name: ModelState(readiness=readiness, adapters=list(one.adapters)) for one in entries}
    return Prepare(endpoint=endpoint, body=memoryview(json.dumps(body).encode()), models=models, fetched=fetched)


def prepare(entries, endpoint, body, **options) -> Prepared | NeedsImages | ApiError | dict:
    """Return a prepared request, the images that it needs, a whole answer, or the error of a rejected request."""
    answer = endpoints.run(task(entries, endpoint, body, **options), entries, _no_stored_items)
    if isinstance(answer, RequestRejected):
        return answer.error
    return json.loads(answer.content) if isinstance(answer, Reply) else answer


def _no_stored_items(previous, responses):
    return []


def requests_of(prepared: Prepared):
    """Return the requests as the engine gets them, one per prompt, and the seeds of their first choices."""
    return [(work_of(prompt.work), prompt.seed) for prompt in prepared.prompts]


def request_of(prepared: Prepared):
    """Return the only request as the engine gets it."""
    ((work, _),) = requests_of(prepared)
    return work.request

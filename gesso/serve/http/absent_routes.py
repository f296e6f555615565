"""Endpoints that clients of other servers ask for, and that this server does not have: each answers with the reason."""

from fastapi import FastAPI, Request

from gesso.serve.errors import ApiError

STATUS = 501
_WITHOUT_SLOTS = "this server has no slots: requests share one batch, and the cache of prompts is shared by all of them"
_WITHOUT_EMBEDDINGS = "this server has no embeddings: its models write text and have none"
_FIXED_MODELS = (
    "this server serves the models it was started with, and creates, copies, pushes or deletes none; "
    "GET /api/tags lists them"
)
_WITHOUT_COMPACTION = "this server does not compact conversations; send the messages that the answer needs"
_WITHOUT_CANCELLING = "this server runs no responses in the background; to cancel a response, close its connection"
ABSENT = {
    ("GET", "/slots"): _WITHOUT_SLOTS,
    ("POST", "/embedding"): _WITHOUT_EMBEDDINGS,
    ("POST", "/embeddings"): _WITHOUT_EMBEDDINGS,
    ("POST", "/v1/embeddings"): _WITHOUT_EMBEDDINGS,
    ("POST", "/api/embed"): _WITHOUT_EMBEDDINGS,
    ("POST", "/api/embeddings"): _WITHOUT_EMBEDDINGS,
    ("POST", "/api/create"): _FIXED_MODELS,
    ("POST", "/api/copy"): _FIXED_MODELS,
    ("POST", "/api/push"): _FIXED_MODELS,
    ("DELETE", "/api/delete"): _FIXED_MODELS,
    ("HEAD", "/api/blobs/{digest}"): _FIXED_MODELS,
    ("POST", "/api/blobs/{digest}"): _FIXED_MODELS,
    ("POST", "/v1/responses/compact"): _WITHOUT_COMPACTION,
    ("POST", "/v1/responses/{id}/cancel"): _WITHOUT_CANCELLING,
}


def add_absent_routes(app: FastAPI) -> None:
    for method, path in ABSENT:
        app.add_api_route(path, refuse, methods=[method], include_in_schema=False)


async def refuse(request: Request) -> None:
    """Reject a request with the reason that its endpoint is absent."""
    reason = ABSENT[request.method, request.scope["route"].path]
    raise ApiError(STATUS, reason, code="not_supported")

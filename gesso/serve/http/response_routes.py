"""Endpoints for stored responses: read and delete them, and list their input."""

import json

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gesso.serve.http.disconnect import CLIENT_LEFT, ClientDisconnected, cancel_on_disconnect
from gesso.serve.models import Models


def add_stored_responses(app: FastAPI, models: Models) -> None:
    @app.get("/v1/responses/{id}", tags=["text"])
    async def stored_response(id: str, request: Request) -> Response:
        """Return a stored response."""
        return Response(models.stored.get(request.state.client, id).body, media_type="application/json")

    @app.delete("/v1/responses/{id}", tags=["text"])
    async def delete_response(id: str, request: Request) -> dict[str, str | bool]:
        """Delete a stored response."""
        models.stored.delete(request.state.client, id)
        return {"id": id, "object": "response", "deleted": True}

    @app.get("/v1/responses/{id}/input_items", tags=["text"])
    async def response_input(id: str, request: Request) -> Response:
        """List the input of a stored response, the newest items first. Takes `limit`, `order` and `after`."""
        query = json.dumps(dict(request.query_params)).encode()
        body = query + b"\n" + models.stored.get(request.state.client, id).items
        try:
            work = models.reply("input_items", body, request.state.client)
            page = await cancel_on_disconnect(request.receive, work)
        except ClientDisconnected:
            return Response(status_code=CLIENT_LEFT)
        return Response(page, media_type="application/json")

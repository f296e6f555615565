"""Endpoints that load and unload adapters while the server runs, with the names and fields of vLLM's."""

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gesso.serve.adapter_files import LoadAdapterFields, UnloadAdapterFields, find_adapter
from gesso.serve.errors import ApiError
from gesso.serve.http.body import json_body
from gesso.serve.http.disconnect import CLIENT_LEFT, ClientDisconnected, cancel_on_disconnect
from gesso.serve.http.openapi import document
from gesso.serve.models import Models


def add_adapter_routes(app: FastAPI, models: Models) -> None:
    async def read(task: str, request: Request) -> dict[str, str]:
        preparing = models.reply(task, await json_body(request), request.state.client)
        fields = await cancel_on_disconnect(request.receive, preparing)
        found: dict[str, str] = json.loads(fields)
        return found

    def adapter_dir() -> str:
        if (root := models.main.settings.adapter_dir) is None:
            message = "adapters cannot be loaded or unloaded while this server runs: start it with --adapter-dir DIR"
            raise ApiError(403, message, code="adapters_disabled")
        return root

    async def load(name: str, directory: str, path: str) -> None:
        try:
            await models.load_adapter(name, directory)
        except ApiError as error:
            error.message = error.message.replace(directory, path)  # clients need not know the paths of this machine
            raise

    def answer(name: str, **more: Any) -> Response:
        return JSONResponse({"id": name, "object": "model", "parent": models.main.entry.name, **more})

    @app.post("/v1/load_lora_adapter", tags=["models"], openapi_extra=document(LoadAdapterFields))
    async def load_lora_adapter(request: Request) -> Response:
        """Load an adapter of the main model and serve it under its name. Needs --adapter-dir."""
        root = adapter_dir()
        try:
            fields = await read("load_lora_adapter", request)
            name, path = fields["lora_name"], fields["lora_path"]
            directory = await asyncio.to_thread(find_adapter, root, path)
            await cancel_on_disconnect(request.receive, load(name, directory, path))
        except ClientDisconnected:
            return Response(status_code=CLIENT_LEFT)
        return answer(name)

    @app.post("/v1/unload_lora_adapter", tags=["models"], openapi_extra=document(UnloadAdapterFields))
    async def unload_lora_adapter(request: Request) -> Response:
        """Unload an adapter. Requests that were accepted before end with it. Needs --adapter-dir."""
        adapter_dir()
        try:
            fields = await read("unload_lora_adapter", request)
        except ClientDisconnected:
            return Response(status_code=CLIENT_LEFT)
        await models.unload_adapter(fields["lora_name"])
        return answer(fields["lora_name"], deleted=True)

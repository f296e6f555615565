"""`gesso ps`: the model that a server of this machine runs."""

from json import loads
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import typer

from gesso.cli.options import Json
from gesso.cli.terminal import print_json, print_text
from gesso.errors import InputError

URL = "http://127.0.0.1:8000"
SECONDS = 5.0


def ps(
    url: Annotated[str, typer.Option(help="Address of the server.")] = URL,
    json: Json = False,
) -> None:
    """Show the model that a running gesso serve has loaded."""
    state = _state(url.rstrip("/"))
    if json:
        print_json(state)
        return
    print_text(_described(state))


def _state(url: str) -> dict[str, Any]:
    """Return what a server answers about its state."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"--url must begin with http:// or https://, got {url!r}")
    try:
        with urlopen(f"{url}/ready", timeout=SECONDS) as answer:
            body = answer.read()
    except HTTPError as error:  # 503 while the model loads
        body = error.read()
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"no server answers at {url} ({reason}); start one with gesso serve, or give --url") from None
    try:
        state = loads(body)
    except ValueError:
        state = None
    if not isinstance(state, dict) or "status" not in state:
        raise InputError(f"the server at {url} is not gesso's: /ready gave no state")
    return state


def _described(state: dict[str, Any]) -> str:
    if "device" not in state:
        reason = state.get("message", f"{100 * state.get('progress', 0):.0f} % loaded")
        return f"{state['status']}: {reason}"
    lines = [
        f"state     {state['status']}",
        f"device    {state['device']}, {state['quantize'] or state['dtype']}",
        f"writes    {state['write']}",
        f"context   {state['max_length']:,} tokens, {state['max_batch']} requests at once",
    ]
    if state["budget_bytes"]:
        lines.append(f"memory    {state['fixed_bytes'] / 1e9:.1f} of {state['budget_bytes'] / 1e9:.1f} GB")
    return "\n".join(lines)

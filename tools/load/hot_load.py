"""`python -m tools.load hot-load`: what clients notice while adapters are loaded and unloaded beside them.

Clients stream drafts, one per denoising step, so the gap between two drafts is the time of a step and of everything
that the engine did meanwhile. Every second client uses an adapter that the server has from the start, the others the
base model. One more client, the visitor, sends requests to that adapter, too. After a third of the time it loads
another adapter, sends requests to it and unloads it, again and again. So only the loads make a difference.

On a GPU, the second adapter needs more slots than the first, so the first load drops all captured passes
(`gesso/backends/cuda/adapters.py`). It is therefore counted apart from the later ones.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import torch
import typer

from gesso import adapters
from gesso.adapters import LoraSettings
from gesso.adapters.files import WEIGHTS
from gesso.adapters.sites import adapter_sites
from gesso.bench.serve import exchange, headers, memory, percentile
from gesso.bench.server import address, running_server
from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.source import locate
from gesso.cli.main import app
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

RANK = 16
RESIDENT, VISITING = "resident", "visiting"  # adapters: loaded at the start, and again and again
VISITS = 2  # requests to the second adapter between loading and unloading it
SEEDS = 4  # distinct requests of a client
CANVAS = 64
BODY: dict[str, Any] = {
    "prompt": "def fib(n):",
    "max_tokens": 2 * CANVAS,
    "stream": True,
    "diffusion": {"steps": 16, "stopping": "fixed", "canvas_length": CANVAS, "settle": 0, "drafts": True},
}


def measure(
    seconds: float, clients: int, arguments: Sequence[str] = (), targets: Sequence[str] = ("attention", "mlp")
) -> dict[str, Any]:
    """Measure for `seconds`, after half of that without measuring, on a server started with these `arguments`.

    The adapters change the weights of these `targets`.
    """
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        root = Path(directory)
        model = empty_model(locate(served_model(arguments)).config)
        for seed, name in enumerate((RESIDENT, VISITING)):
            write_adapter(model, root / name, targets, seed)
        size = (root / VISITING / WEIGHTS).stat().st_size
        own = ("--adapter", f"{RESIDENT}={root / RESIDENT}", "--adapter-dir", directory)
        with running_server(*own, *arguments) as server:
            server.wait_ready()
            return {"adapter_mb": round(size / 1e6, 1), **_measure(server.url, seconds, clients)}


# --- adapters ---------------------------------------------------------------------------------------------------------


def served_model(arguments: Sequence[str]) -> str | None:
    """Return the model that `gesso serve` serves with these arguments; None: the bundled one."""
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    try:
        given = serve.make_context("serve", list(arguments)).params
    except typer.TyperException as error:
        raise InputError(f"gesso serve: {error.format_message()}") from None
    model: str | None = given["model_argument"] or given["model"]
    return model


def write_adapter(model: DiffusionGemma, directory: Path, targets: Sequence[str], seed: int) -> None:
    """Write an adapter with random factors for a model that needs no weights, only their shapes."""
    name, settings = directory.name, LoraSettings(rank=RANK, targets=tuple(targets))
    adapters.add(model, settings, name)
    generator = torch.Generator().manual_seed(seed)
    for site in dict.fromkeys(adapter_sites(model).values()):
        if (lora := site.get(name)) is not None:
            lora.to_empty(device="cpu")
            lora.A.data.normal_(0, lora.A.shape[-1] ** -0.5, generator=generator)
            lora.B.data.normal_(0, 0.1, generator=generator)
    adapters.save(model, directory, settings, name)
    adapters.remove(model, name)


# --- clients ----------------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """A client of one model (None: the base model). `ask` sends a request and notes what was wrong with its answer."""

    url: str
    model: str | None = None
    seeds: int = SEEDS
    requests: int = 0
    errors: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when a draft came, and seconds since the last one
    texts: dict[tuple[str | None, int], str] = field(default_factory=dict)  # by model and seed
    changed: int = 0  # answers that differ from the first one with the same model and seed

    def ask(self) -> None:
        seed = self.requests % self.seeds
        self.requests += 1
        body = {**BODY, "seed": seed} | ({} if self.model is None else {"model": self.model})
        try:
            text = self._text(body)
        except (OSError, HTTPException, ValueError) as error:
            self.errors.append(str(error)[:200])
            time.sleep(0.1)  # after an immediate rejection
            return
        self.changed += text != self.texts.setdefault((self.model, seed), text)

    def _text(self, body: dict[str, Any]) -> str:
        """Return the text of an answer, and note the gaps between its drafts. Raise ValueError if it is incomplete."""
        text, last = "", None
        connection = HTTPConnection(*address(self.url), timeout=600)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers())
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"{response.status}: {response.read().decode()}")
            while line := response.readline():
                now = time.monotonic()
                if line.rstrip() == b"data: [DONE]":
                    return text
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                if "draft" not in event:
                    text += "".join(choice["text"] for choice in event["choices"])
                    continue
                if last is not None:
                    self.gaps.append((now, now - last))
                last = now
        finally:
            connection.close()
        raise ValueError("the stream ended early")

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.ask()


@dataclass
class Visitor(Client):
    """A client that loads an adapter, uses it and unloads it."""

    model: str | None = RESIDENT
    loads: list[float] = field(default_factory=list)  # seconds

    def visit(self) -> None:
        began = time.monotonic()
        if self._post("load", lora_name=VISITING, lora_path=VISITING):
            self.loads.append(time.monotonic() - began)
            self.model = VISITING
            for _ in range(VISITS):
                self.ask()
            self._post("unload", lora_name=VISITING)

    def _post(self, action: str, **fields: str) -> bool:
        """Load or unload an adapter, and return whether that succeeded."""
        self.requests += 1
        try:
            status, content = exchange(self.url, "POST", f"/v1/{action}_lora_adapter", json.dumps(fields))
        except (OSError, HTTPException) as error:
            status, content = 0, str(error).encode()
        if status != 200:
            self.errors.append(f"{action}: {status}: {content.decode()[:200]}")
            time.sleep(0.1)
        return status == 200


# --- the measurement --------------------------------------------------------------------------------------------------


def _measure(url: str, seconds: float, clients: int) -> dict[str, Any]:
    bystanders = [Client(url, RESIDENT if number % 2 else None) for number in range(clients)]
    visitor, stop = Visitor(url), threading.Event()
    threads = [threading.Thread(target=bystander.run, args=[stop]) for bystander in bystanders]
    for thread in threads:
        thread.start()
    try:
        _repeat(visitor.ask, seconds / 2)  # on a GPU, new batch sizes are captured first
        times = [time.monotonic()]
        for act, least in ((visitor.ask, seconds / 3), (visitor.visit, 0), (visitor.visit, seconds * 2 / 3)):
            _repeat(act, least)
            times.append(time.monotonic())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    all_clients = [*bystanders, visitor]
    errors = [error for client in all_clients for error in client.errors]
    gaps = [gap for bystander in bystanders for gap in bystander.gaps]
    quiet, first, later = (
        [seconds for at, seconds in gaps if start < at <= end] for start, end in zip(times, times[1:], strict=False)
    )
    return {
        "clients": clients,
        "requests": sum(client.requests for client in all_clients),
        "failed": len(errors),
        "errors": errors[:3],
        "changed_texts": sum(client.changed for client in all_clients),
        "loads": len(visitor.loads),
        "load_s": {
            "first": round(visitor.loads[0], 3) if visitor.loads else None,
            "median": percentile(visitor.loads, 50),
            "longest": percentile(visitor.loads, 100),
        },
        "gap_ms": {"without_loads": _summary(quiet), "first_load": _summary(first), "later_loads": _summary(later)},
        "memory": memory(url),
    }


def _repeat(act: Callable[[], None], seconds: float) -> None:
    """Act once, and then until the time is over."""
    until = time.monotonic() + seconds
    act()
    while time.monotonic() < until:
        act()


def _summary(gaps: Sequence[float]) -> dict[str, float | None]:
    milliseconds = [1000 * gap for gap in gaps]
    return {
        "count": len(gaps),
        "median": percentile(milliseconds, 50),
        "p99": percentile(milliseconds, 99),
        "longest": percentile(milliseconds, 100),
    }

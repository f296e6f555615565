"""Metrics for Prometheus, at /metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gesso.serve.protocol import Ended, Heartbeat

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("gesso_requests", "HTTP requests answered", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "gesso_request_seconds",
            "From request to the end of its answer",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self.first_text = Histogram(
            "gesso_first_text_seconds", "From request to the first settled text", buckets=SECONDS, registry=registry
        )
        self.prompt_tokens = Counter("gesso_prompt_tokens", "Tokens read", registry=registry)
        self.cached_tokens = Counter("gesso_cached_tokens", "Of these, found in the cache", registry=registry)
        self.completion_tokens = Counter("gesso_completion_tokens", "Tokens written", registry=registry)
        self.steps = Counter("gesso_denoising_steps", "Denoising steps of all canvases", registry=registry)
        self.canvases = Counter("gesso_canvases", "Canvases finished", registry=registry)
        self.waiting = Gauge("gesso_requests_waiting", "Requests not yet with the engine", ["model"], registry=registry)
        self.running = Gauge("gesso_requests_running", "Requests with the engine", ["model"], registry=registry)
        self.rejected = Counter("gesso_requests_rejected", "Requests refused because too many wait", registry=registry)
        self.restarts = Counter("gesso_engine_restarts", "Times the engine process died", registry=registry)
        self.up = Gauge("gesso_engine_up", "1 while the engine takes requests", ["model"], registry=registry)
        self.batch = Gauge("gesso_batch_limit", "Requests that can run at once", ["model"], registry=registry)
        self.engine = {
            name: Gauge(f"gesso_engine_{name}", help, ["model"], registry=registry)
            for name, help in (
                ("requests", "Requests in the engine process"),
                ("places", "Places of the engine that they take, in the batch or before it"),
                ("cache_bytes", "Size of the KV cache"),
                ("memory_bytes", "Memory of the engine process"),
                ("device_bytes", "GPU memory reserved by the engine process"),
            )
        }
        ProcessCollector(registry=registry)  # the same of the server's own process, and its open connections

    def count(self, ended: Ended) -> None:
        self.prompt_tokens.inc(ended.usage["prompt_tokens"])
        self.cached_tokens.inc(ended.usage["cached_tokens"])
        self.completion_tokens.inc(ended.usage["completion_tokens"])
        self.steps.inc(ended.usage["denoising_steps"])
        self.canvases.inc(ended.usage["canvases"])

    def record(self, model: str, beat: Heartbeat) -> None:
        for name, gauge in self.engine.items():
            gauge.labels(model).set(getattr(beat, name))

    def render(self) -> bytes:
        return generate_latest(self.registry)

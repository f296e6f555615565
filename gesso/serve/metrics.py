"""Metrics for Prometheus, at /metrics."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gesso.serve.wire import Heartbeat

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"gesso_{name}", help, labels, registry=registry)

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"gesso_{name}", help, ["model", *labels], registry=registry)

        def seconds(name: str, help: str, *labels: str) -> Histogram:
            return Histogram(f"gesso_{name}_seconds", help, labels, buckets=SECONDS, registry=registry)

        self.requests = counter("requests", "HTTP requests answered", "path", "status")
        self.seconds = seconds("request", "Time from the request to the end of its answer", "path")
        self.answers = counter("answers", "Answers to accepted requests, by how they ended", "outcome", "model")
        self.first_text = seconds("first_text", "Time from the request to its first settled text")
        self.usage = {
            "prompt_tokens": counter("prompt_tokens", "Prompt tokens"),
            "cached_tokens": counter("cached_tokens", "Prompt tokens found in the KV cache"),
            "completion_tokens": counter("completion_tokens", "Generated tokens"),
            "denoising_steps": counter("denoising_steps", "Denoising steps of all canvases"),
            "canvases": counter("canvases", "Finished canvases"),
        }
        self.images = counter("images", "Images in accepted requests")
        self.waiting = gauge("requests_waiting", "Requests waiting for the engine")
        self.running = gauge("requests_running", "Requests sent to the engine")
        self.rejected = counter("requests_rejected", "Requests rejected because the queue is full")
        self.restarts = counter("engine_restarts", "Engine processes that died")
        self.up = gauge("engine_up", "1 while the engine accepts requests")
        self.adapters = gauge("adapters", "Adapters that requests can name")
        self.adapter_requests = gauge("adapter_requests", "Requests with this adapter, waiting or running", "adapter")
        self.batch = gauge("batch_limit", "Requests that can run at once")
        self.engine = {
            "requests": gauge("engine_requests", "Requests in the engine process"),
            "places": gauge("engine_places", "Engine requests for these, running or waiting; infill takes several"),
            "cache_bytes": gauge("engine_cache_bytes", "Size of the KV cache"),
            "memory_bytes": gauge("engine_memory_bytes", "Resident memory of the engine process"),
            "device_bytes": gauge("engine_device_bytes", "GPU memory reserved by the engine process"),
        }
        self.prepared = {
            "captures": counter("engine_captures", "Passes captured as CUDA graphs", "model"),
            "compilations": counter("engine_compilations", "Kernels compiled", "model"),
            "kernel_loads": counter("engine_kernel_loads", "Compiled kernels read from the cache on disk", "model"),
            "images_read": counter("engine_images_read", "Images read by the vision tower", "model"),
            "images_kept": counter("engine_images_kept", "Images that the tower had read before", "model"),
        }
        self.log_lines_dropped = counter("log_lines_dropped", "Lines that the reader of the log did not take in time")
        self._beats: dict[str, Heartbeat] = {}  # the last one by model
        ProcessCollector(registry=registry)  # memory and open files of the server process

    def count(self, usage: Mapping[str, int]) -> None:
        for name, counter in self.usage.items():
            counter.inc(usage[name])

    def record(self, model: str, beat: Heartbeat) -> None:
        for name, gauge in self.engine.items():
            gauge.labels(model).set(getattr(beat, name))
        last = self._beats.get(model, Heartbeat())
        for name, counter in self.prepared.items():
            now, before = getattr(beat, name), getattr(last, name)
            counter.labels(model).inc(now - before if now >= before else now)  # a new engine counts from zero
        self._beats[model] = beat

    def render(self) -> bytes:
        return generate_latest(self.registry)

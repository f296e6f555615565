"""`python -m tools.load scrubbing`: the cost of scrubbing in the studio. Needs Chromium and `pip install playwright`.

A recording of 2,048 tokens and 500 steps, in 8 canvases, is scrubbed from its end to its beginning, one step per
animation frame. Chromium reports the time of scripts, styles and layout, and the memory of JavaScript.
"""

import shutil
import statistics
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gesso.errors import InputError

# Makes the recording, shows it in the chat's panel, and stores both in `window.bench`.
LONG_RUN = """async () => {
  const { Recording } = await import("/studio/recording.js");
  const [CANVASES, CANVAS, STEPS, WORDS, WIDTH] = [8, 256, 500, 4096, 5];
  let state = 1;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
  const word = () => Math.floor(random() * WORDS);
  const pieces = Object.fromEntries(Array.from({ length: WORDS }, (_, i) => [i, i % 17 ? ` word${i}` : "\\n"]));
  const recording = new Recording();
  for (let n = 0; n < STEPS; n += 1) {
    const canvas = Math.floor((n * CANVASES) / STEPS);
    const first = Math.ceil((canvas * STEPS) / CANVASES);
    const last = Math.ceil(((canvas + 1) * STEPS) / CANVASES) - 1;
    const done = (n - first) / (last - first); // the share of positions that are no longer noise
    const before = n > first ? recording.steps[n - 1] : null;
    const stands = Array.from({ length: CANVAS }, (_, i) => before && random() < done ** 0.5);
    recording.add({
      run: 0, canvas, attempt: 0, start: canvas * CANVAS, step: n - first + 1, steps: last - first + 1, text: "",
      tokens: stands.map((stays, i) => (stays ? before.tokens[i] : word())),
      entropy: stands.map((stays) => (stays ? 0 : 6 * random())),
      states: stands.map((stays) => (stays ? "s" : ".")).join(""),
      reason: n === last ? "steps" : null,
      candidates: stands.map(() => Array.from({ length: WIDTH }, () => [word(), 0.2])),
      pieces: n ? {} : pieces, special: [],
    }, n / 20);
  }
  const panel = document.querySelector("chat-view run-panel");
  panel.recording = recording;
  window.bench = { recording, panel };
}"""

SCRUB = """async () => {
  const { recording, panel } = window.bench;
  const slider = panel.querySelector("run-timeline input");
  const spent = [];
  for (let index = recording.length - 1; index >= 0; index -= 1) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    slider.value = index;
    slider.dispatchEvent(new Event("input"));
    spent.push(performance.now() - began);
  }
  return spent;
}"""

# Typed arrays are not part of the JavaScript heap.
ARRAYS = """() => window.bench.recording.steps
  .flatMap((step) => Object.values(step))
  .reduce((sum, value) => sum + (value?.byteLength ?? 0), 0)"""


def measure() -> dict[str, Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise InputError("Playwright is missing: pip install playwright") from None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise InputError("Chromium is missing: apt-get install chromium")
    with StudioFiles() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.evaluate(LONG_RUN)
        page.evaluate(SCRUB)  # warm-up
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = _metrics(session)
        spent = page.evaluate(SCRUB)
        after = _metrics(session)
        session.send("HeapProfiler.collectGarbage")
        heap = _metrics(session)["JSHeapUsedSize"] + page.evaluate(ARRAYS)
        nodes = page.locator("chat-view [role=option]").count()
        browser.close()
    frames = len(spent)
    milliseconds = {name: 1000 * (after[name] - before[name]) / frames for name in after if name.endswith("Duration")}
    return {
        "frames": frames,
        "cells_at_the_end": nodes,
        "script_ms": {
            "mean": round(milliseconds["ScriptDuration"], 2),
            "p99": round(statistics.quantiles(spent, n=100)[98], 2),
            "most": round(max(spent), 2),
        },
        "style_and_layout_ms": round(milliseconds["LayoutDuration"] + milliseconds["RecalcStyleDuration"], 2),
        "all_main_thread_ms": round(milliseconds["TaskDuration"], 2),
        "memory_mb": round(heap / 1e6, 1),
    }


def _metrics(session: Any) -> dict[str, float]:
    return {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}


class StudioFiles:
    """Serve the studio's files on a free port, without an engine. `answers` are those of other paths."""

    def __init__(self, answers: Mapping[str, str] | None = None) -> None:
        self.answers = {path: answer.encode() for path, answer in (answers or {}).items()}

    def __enter__(self) -> str:
        from gesso.serve.studio_files import HEADERS, content_type, files

        contents = self.answers | {f"/studio/{name}": file for name, file in files().items()}
        contents["/"] = contents["/studio/index.html"]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # keep connections open for several files
            wbufsize = -1  # send head and body together: otherwise the body waits until the head is acknowledged

            def do_GET(self) -> None:
                body = contents.get(self.path, b"{}")
                self.send_response(200 if self.path in contents else 404)
                kind = content_type("index.html" if self.path == "/" else self.path)
                for header, value in {**HEADERS, "content-type": kind}.items():
                    self.send_header(header, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

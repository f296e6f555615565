"""The studio in a real browser, with a live server or with fixed answers."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests import waiting

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = "the studio's tests need a browser: apt-get install chromium"
PIECES = ["To", " be", ",", " or", " not"]
TEXT = "".join(PIECES)
ABOUT = {  # what a page without an engine reads about it
    "/health": '{"status": "ok", "engine": "ready", "progress": 1.0}',
    "/v1/models": '{"data": [{"id": "gesso-26B", "max_model_len": 8192}]}',
    "/metrics": 'gesso_engine_up{model="gesso-26B"} 1.0\ngesso_completion_tokens_total 7.0\n',
}
CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}
PATIENCE = 1000 * waiting.PATIENCE  # milliseconds
WIDTH = "() => Math.max(...['html', 'main'].map((e) => document.querySelector(e).scrollWidth))"
# Everything in a view that is cut off, by the screen or by its own box. Text fields and code scroll.
CLIPPED = """(view) => [...view.querySelectorAll("*")]
  .filter((e) => e.checkVisibility() && e.clientWidth)
  .filter((e) => !e.matches("option, textarea, input, select, pre, pre *, .candidate code"))
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < 0
    || (getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1))
  .map((e) => e.outerHTML.slice(0, 200))"""


def need_browser() -> None:
    """Skip the test if no browser is installed."""
    if BROWSER is None:
        pytest.skip(NEEDED)


@contextlib.contextmanager
def browsing() -> Iterator[object]:
    """Start a browser, and close it at the end."""
    need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium cannot create its sandbox as root in a container. Without a GPU, it would draw with an emulated one.
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextlib.contextmanager
def visiting(browser, url: str, *, may_complain: bool = False, **options):
    """Open a page in a new browser context. Fail on console errors, unless `may_complain`."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    assert may_complain or not complaints, complaints


def tokens(view) -> list[str]:
    """Return the texts of the tokens on the canvas."""
    return view.locator("[role=option]").all_text_contents()


def setting(view, values: dict[str, object], side: int = 0) -> None:
    """Fill in settings by their labels, in the drawer of a view."""
    view.get_by_role("button", name="Settings").nth(side).click()
    drawer = view.get_by_role("dialog", name="Settings")
    for label, value in values.items():
        control = drawer.get_by_label(label, exact=True)
        if not control.is_visible():
            drawer.get_by_text("Advanced", exact=True).click()
        if control.evaluate("e => e.tagName") == "SELECT":
            control.select_option(str(value))
        else:
            control.fill(str(value))
    view.page.keyboard.press("Escape")
    drawer.wait_for(state="hidden")


def finished(view) -> None:
    """Wait until a run has ended: its Stop button disappears."""
    view.get_by_role("button", name="Stop").wait_for(state="hidden")


def serious_violations(page, rules: list[str] | None = None) -> list:
    """Return what axe-core finds of serious or critical impact, by all rules or by these."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe()
    options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
    found = axe.run(page, options=options).response["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    return [(page.url, v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in serious]


# --- fixed answers ----------------------------------------------------------------------------------------------------


def stream(*choices: dict, pieces: list[str] = PIECES) -> str:
    """Return the events of a stream with one draft, whose tokens are `pieces`, and then these choices."""
    count = len(pieces)
    draft = {"index": 0, "run": 0, "canvas": 0, "attempt": 0, "start": 0, "step": 1, "steps": 1, "reason": "steps"}
    draft |= {"tokens": list(range(count)), "entropy": [0.0] * count, "states": "s" * count, "special": []}
    draft |= {"text": "".join(pieces), "pieces": dict(enumerate(pieces)), "candidates": [[[0, 1.0]]] * count}
    found = [{"choices": [], "draft": draft}, *({"choices": [choice]} for choice in choices)]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in found) + "data: [DONE]\n\n"


def said(content: str = TEXT, calls: tuple[str, ...] = ()) -> dict:
    """Return a complete choice with this text and calls of these tools."""
    called = [{"index": i, "id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
              for i, name in enumerate(calls)]  # fmt: skip
    return {"index": 0, "delta": {"content": content, "tool_calls": called}, "finish_reason": "stop"}


def answering(page, *choices: dict) -> list[dict]:
    """Answer the chat requests of a page with these choices. Return the list to which each request is added."""
    asked: list[dict] = []

    def answer(route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(body=stream(*choices))

    page.route("**/v1/chat/completions", answer)
    return asked


def open_view(page, name: str):
    page.goto(page.url.split("#")[0] + f"#{name}")
    return page.locator(f"[data-view={name}]")


def copied(view, name: str) -> str:
    """Press a copy button and return the content of the clipboard."""
    view.page.evaluate("() => navigator.clipboard.writeText('')")
    view.get_by_role("button", name=name).first.click()
    view.page.wait_for_function("() => navigator.clipboard.readText()")
    return view.page.evaluate("() => navigator.clipboard.readText()")


def curl_arguments(command: str) -> list[str]:
    """Return the arguments that a shell gives to curl."""
    script = "curl() { printf '%s\\0' \"$@\"; }\n" + command
    return subprocess.run(["sh", "-c", script], capture_output=True, check=True, text=True).stdout.split("\0")[:-1]

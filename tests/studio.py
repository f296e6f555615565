"""The studio as its users have it: a real browser on a live server."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = "the studio's tests need a browser: apt-get install chromium"
PATIENCE = 30_000  # milliseconds; two slow cores are shared with other tests


def need_browser() -> None:
    """The tests that need a browser skip where there is none."""
    if BROWSER is None:
        pytest.skip(NEEDED)


@contextlib.contextmanager
def browsing() -> Iterator[object]:
    need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, in a container, Chromium has no sandbox to be had.
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def visiting(browser, url: str, *, may_complain: bool = False, **options):
    """A page in a browser that remembers nothing; it ends with no error on the console."""
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
    return view.locator("[role=option]").all_text_contents()


def finished(view) -> None:
    """Wait until a run has ended: what stops it is offered no more."""
    view.get_by_role("button", name="Stop").wait_for(state="hidden")

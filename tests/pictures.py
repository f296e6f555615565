"""`python -m tests.pictures`: take the pictures of docs/guides/studio.md, in a real browser with a live server."""

import tempfile
from pathlib import Path

from tests.serving import serving
from tests.studio import browsing, finished, visiting

DOCS = Path(__file__).parent.parent / "docs" / "images"
WIDE = {"width": 1280, "height": 800}


def chat(browser, url: str) -> None:
    """Show a half denoised answer with a pinned token and the inspector of another."""
    with visiting(browser, url, viewport=WIDE, color_scheme="light") as page:
        view = page.locator("chat-view")
        view.get_by_text("Settings").click()
        view.get_by_label("Seed").fill("11")
        view.get_by_text("Settings").click()
        view.get_by_role("button", name="How do you work?").click()
        view.get_by_role("button", name="Retry").wait_for()
        scrub(view, 1)
        view.locator("[role=option]").nth(6).click()
        view.locator("[role=option]").nth(10).hover()
        page.screenshot(path=DOCS / "studio-chat.png")


def write(browser, url: str) -> None:
    """Show a hole in Python code being filled, in the dark theme."""
    with visiting(browser, url + "#write", viewport=WIDE, color_scheme="dark") as page:
        view = page.locator("write-view")
        view.get_by_text("Settings").click()
        view.get_by_label("Seed").fill("1")
        view.get_by_label("Longest answer").fill("8")
        view.get_by_text("Settings").click()
        view.get_by_role("button", name="Fill the hole").click()
        view.locator(".runs").wait_for()
        finished(view)
        scrub(view, 3)
        page.screenshot(path=DOCS / "studio-write.png")


def sudoku(browser, url: str) -> None:
    """Show a puzzle with 17 clues, half solved."""
    with visiting(browser, url + "#sudoku", viewport={"width": 1280, "height": 760}, color_scheme="light") as page:
        view = page.locator("sudoku-view")
        view.get_by_label("Puzzle", exact=True).select_option("17 clues")
        view.get_by_label("Seed").fill("7")
        view.get_by_role("button", name="Solve").click()
        view.get_by_text("olved").wait_for()
        scrub(view, 2)
        page.screenshot(path=DOCS / "studio-sudoku.png")


def scrub(view, index: int) -> None:
    slider = view.get_by_label("Step", exact=True)
    slider.evaluate("(e, i) => { e.value = i; e.dispatchEvent(new Event('input')); }", index)
    view.page.wait_for_timeout(300)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "log") as server, browsing() as browser:
        server.wait_ready()
        for picture in (chat, write, sudoku):
            picture(browser, server.url)
    for path in sorted(DOCS.glob("studio-*.png")):
        print(path.name, f"{path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

"""`python -m tests.pictures`: take the pictures of docs/guides/studio.md, and record the run an empty chat replays.

It uses a real browser and a live server.
"""

import json
import tempfile
import time
from pathlib import Path

from tests.serving import Running, serving
from tests.studio import browsing, finished, setting, visiting

DOCS = Path(__file__).parent.parent / "docs" / "images"
DEMO = Path(__file__).parent.parent / "gesso" / "serve" / "studio" / "demo.js"
WIDE = {"width": 1280, "height": 800}


def chat(browser, url: str) -> None:
    """Show a half denoised answer with a pinned token and the inspector of another."""
    with visiting(browser, url, viewport=WIDE, color_scheme="light") as page:
        view = page.locator("chat-view")
        setting(view, {"Seed": 11})
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
        setting(view, {"Seed": 5, "Longest answer": 6})
        view.get_by_role("button", name="Fill the hole").click()
        view.locator(".runs").wait_for()
        finished(view)
        scrub(view, 3)
        page.screenshot(path=DOCS / "studio-write.png")


def sudoku(browser, url: str) -> None:
    """Show a puzzle with 17 clues, half solved."""
    with visiting(browser, url + "#sudoku", viewport={"width": 1280, "height": 800}, color_scheme="light") as page:
        view = page.locator("sudoku-view")
        view.get_by_label("Puzzle", exact=True).select_option("17 clues")
        view.get_by_label("Seed").fill("7")
        view.get_by_role("button", name="Solve").click()
        view.get_by_text("olved").wait_for()
        scrub(view, 2)
        page.screenshot(path=DOCS / "studio-sudoku.png")


def demo(server: Running) -> None:
    """Write the run that an empty chat replays. With a low bound, few tokens settle per step."""
    diffusion = {"entropy_bound": 0.02, "drafts": {"candidates": 3}}
    asked = {"messages": [{"role": "user", "content": "How do you work?"}], "seed": 7, "max_tokens": 32}
    events = server.events("/v1/chat/completions", asked | {"diffusion": diffusion})
    began = time.perf_counter()
    drafts = [event["draft"] | {"at": round(time.perf_counter() - began, 4)} for event in events if "draft" in event]
    run = {"prompt": "", "note": "A recorded run. Press “Send” to see your own.", "drafts": drafts}
    text = json.dumps(run, ensure_ascii=False, separators=(",", ":"))
    DEMO.write_text(
        f"// A run that an empty chat replays, written by tests/pictures.py.\n\nexport const DEMO = {text};\n"
    )


def scrub(view, index: int) -> None:
    slider = view.get_by_label("Step", exact=True)
    slider.evaluate("(e, i) => { e.value = i; e.dispatchEvent(new Event('input')); }", index)
    view.page.wait_for_timeout(300)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "log") as server, browsing() as browser:
        server.wait_ready()
        demo(server)
        for picture in (chat, write, sudoku):
            picture(browser, server.url)
    for path in sorted(DOCS.glob("studio-*.png")):
        print(path.name, f"{path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

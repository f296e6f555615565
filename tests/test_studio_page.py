"""The page itself: keys, lost servers, small screens, assistive technology, hostile text, and what a frame costs."""

import json
import signal

import pytest

from tests.serving import make_model, serving
from tests.studio import finished, visiting

pytestmark = pytest.mark.studio
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=30_000)

VIEWS = ("chat", "write", "compare", "sudoku", "json", "server")
HOSTILE = """<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>
**<svg onload=window.hurt=1>** [here](javascript:window.hurt=1) `<b>`
```html
</code></pre><img src=x onerror="window.hurt=1">
```"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_model(tmp_path_factory.mktemp("model") / "tiny"))


def ask(page, text: str = "Hello"):
    view = page.locator("chat-view")
    view.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    view.get_by_role("button", name="Retry").wait_for()
    finished(view)
    return view


# --- the server comes and goes ----------------------------------------------------------------------------------------


def test_a_key_is_asked_for_and_a_lost_server_waited_for(browser, model, tmp_path):
    arguments, keys = ("--model", model), {"GESSO_API_KEYS": "open sesame"}
    with (
        serving(tmp_path / "first", *arguments, **keys) as server,
        visiting(browser, server.url, may_complain=True) as page,
    ):
        field, banner = page.get_by_label("This server asks for a key"), page.locator("#banner")
        for key, accepted in (("wrong", False), ("open sesame", True)):
            expect(field).to_be_visible()
            field.fill(key)
            with page.expect_response("**/v1/models") as answer:
                page.keyboard.press("Enter")
            assert answer.value.ok == accepted
        page.reload()
        expect(page.locator("chat-view .welcome")).to_be_visible()
        expect(field).to_be_hidden()
        expect(banner).to_be_hidden()
        assert "sesame" not in page.evaluate("() => JSON.stringify(localStorage)")

        server.process.send_signal(signal.SIGTERM)
        server.process.wait(20)
        expect(banner).to_contain_text("does not answer")
        view = ask(page)
        expect(view.locator(".message .complaint")).to_contain_text("does not answer")
        with serving(tmp_path / "second", *arguments, "--port", server.url.rsplit(":", 1)[1], **keys):
            expect(page.locator("#status")).to_have_text("ready")
            expect(banner).to_be_hidden()
            view.get_by_role("button", name="Retry").click()
            view.locator("[role=option]").first.wait_for()
            finished(view)
            expect(view.locator(".message .complaint")).to_have_count(0)


# --- text that means harm ---------------------------------------------------------------------------------------------


def hostile_stream() -> str:
    """An answer whose every part is markup: its text, its thoughts, its tokens and the tool it calls."""
    draft = {"index": 0, "run": 0, "canvas": 0, "attempt": 0, "start": 0, "step": 1, "steps": 1, "text": HOSTILE}
    draft |= {"tokens": [5], "entropy": [0.0], "states": "s", "reason": "steps", "special": []}
    draft |= {"pieces": {"5": HOSTILE}, "candidates": [[[5, 1.0]]]}
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    delta = {"content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    events = [{"choices": [], "draft": draft}, {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def test_nothing_the_model_writes_becomes_markup(browser, studio):
    with visiting(browser, studio.url) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=hostile_stream()))
        view = ask(page, HOSTILE)
        view.locator("[role=option]").first.hover()
        view.locator(".candidate").first.click()
        view.get_by_text("Thoughts").click()
        page.reload()
        expect(view.locator(".message")).to_have_count(2)
        assert view.locator("img, script, svg, b, a").count() == 0
        assert view.locator(".message.user .text").text_content() == HOSTILE
        assert page.evaluate("() => window.hurt") is None


def test_nothing_the_engine_writes_becomes_markup(browser, studio):
    """The same from the live engine, which the schema leaves no choice."""
    text = '<img src=x onerror="window.hurt=1">'
    with visiting(browser, studio.url + "#json") as page:
        view = page.locator("form-view")
        view.get_by_label("JSON schema").fill(json.dumps({"type": "string", "const": text}))
        view.get_by_role("button", name="Answer in JSON").click()
        expect(view.locator(".facts td")).to_have_text(text)
        assert page.evaluate("() => window.hurt") is None and view.locator("img").count() == 0


# --- every screen, every reader ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 1600])
def test_no_view_scrolls_sideways(browser, studio, width):
    with visiting(browser, studio.url, viewport={"width": width, "height": 740}) as page:
        ask(page, "Who are you?")
        page.locator("chat-view [role=option]").first.hover()
        for view in VIEWS:
            page.goto(f"{studio.url}#{view}")
            page.locator(f"[data-view={view}]").wait_for()
            wide = page.evaluate(
                "() => Math.max(...['html', 'main'].map((e) => document.querySelector(e).scrollWidth))"
            )
            assert wide <= width, view


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", ["color-contrast"])])
def test_axe_finds_no_serious_violation(browser, studio, scheme, rules):
    """By all its rules; in the dark by those that colours can break."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe()
    with visiting(browser, studio.url, color_scheme=scheme) as page:
        view = ask(page, "Who are you?")
        view.locator("[role=option]").nth(2).click()
        view.get_by_label("Step", exact=True).evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
        for name in VIEWS:
            page.goto(f"{studio.url}#{name}")
            page.locator(f"[data-view={name}]").wait_for()
            found = axe.run(page, options={"runOnly": rules} if rules else None).response["violations"]
            serious = [v for v in found if v["impact"] in ("serious", "critical")]
            assert not serious, (name, [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in serious])


# --- what a frame costs -----------------------------------------------------------------------------------------------


def test_a_step_touches_only_what_it_changes(browser, studio):
    """Over 2,000 tokens, 500 steps: as much is changed in the page as differs between two canvases, and little else."""
    from gesso.bench.studio import LONG_RUN

    with visiting(browser, studio.url, viewport={"width": 1280, "height": 800}) as page:
        page.evaluate(LONG_RUN)
        touched = page.evaluate(
            """async () => {
                const { panel, recording } = window.bench;
                panel.goTo(recording.length - 1);
                const seen = new MutationObserver(() => {});
                seen.observe(panel, { subtree: true, childList: true, characterData: true, attributes: true });
                const found = [];
                for (let index = recording.length - 2; index >= 0; index -= 1) {
                    const [a, b] = [recording.steps[index], recording.steps[index + 1]];
                    panel.goTo(index);
                    const nodes = new Set(seen.takeRecords().map((record) => record.target)).size;
                    const same = a.canvas === b.canvas;
                    const differs = (_, i) => ["tokens", "entropy", "states"].some((name) => a[name][i] !== b[name][i]);
                    if (same) found.push({ nodes, different: [...a.tokens].filter(differs).length });
                }
                return { found, length: recording.length, cells: 2048 };
            }"""
        )
        assert touched["length"] == 500
        for step in touched["found"]:
            assert step["nodes"] <= 2 * step["different"] + 20, step  # a cell and its text; counters and slider

"""The studio page: API keys, lost servers, small screens, accessibility, hostile text, and the cost of a frame."""

import json
import re

import pytest

from gesso.serve.http.app import create_app
from gesso.serve.settings import EngineSettings, ServerSettings
from tests.studio import CLIPPED, PATIENCE, WIDTH, answering, finished, said, serious_violations, visiting

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=PATIENCE)

SCREENS = {"wide": {"width": 1440, "height": 900}, "narrow": {"width": 390, "height": 844}}
KEY = "Bearer open sesame"
VIEWS = ("chat", "write", "compare", "sudoku", "json", "server")
HOSTILE = """<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>
**<svg onload=window.hurt=1>** [here](javascript:window.hurt=1) `<b>`
```html
</code></pre><img src=x onerror="window.hurt=1">
```"""


def ask(page, text: str = "Hello"):
    view = page.locator("chat-view")
    view.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    view.get_by_role("button", name="Retry").wait_for()
    finished(view)
    return view


def answered(page):
    answering(page, said("# A list\n- with `code`\n```py\nx\n```", ("book_table",)))
    return ask(page)


# --- keys and lost servers --------------------------------------------------------------------------------------------


def test_page_requests_a_key_and_reconnects_to_a_lost_server(browser, studio_files):
    """The answers are those of a server with a key, which then is gone, and then is back."""
    is_lost = False

    def guard(route) -> None:
        if is_lost:
            route.abort("connectionrefused")
        elif not route.request.url.endswith("/health") and route.request.headers.get("authorization") != KEY:
            route.fulfill(status=401, json={"error": {"message": "wrong key", "code": "invalid_api_key"}})
        else:
            route.fallback()

    with visiting(browser, "about:blank", may_complain=True) as page:
        answering(page, said())
        page.route(re.compile("/(health|metrics|v1/.*)$"), guard)
        page.goto(studio_files)
        field, banner = page.get_by_label("This server needs an API key"), page.locator("#banner")
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

        is_lost = True
        expect(banner).to_contain_text("does not answer")
        view = ask(page)
        expect(view.locator(".message .complaint")).to_contain_text("does not answer")
        is_lost = False
        expect(page.locator("#status")).to_have_text("ready")
        expect(banner).to_be_hidden()
        view.get_by_role("button", name="Retry").click()
        view.locator("[role=option]").first.wait_for()
        finished(view)
        expect(view.locator(".message .complaint")).to_have_count(0)


def test_key_form_does_not_take_the_focus_again(browser, studio_files):
    """The server view sends a request every second, and each is rejected."""
    with visiting(browser, studio_files, may_complain=True) as page:
        page.route("**/metrics", lambda route: route.fulfill(status=401, body="{}"))
        page.goto(studio_files + "#server")
        expect(page.get_by_label("This server needs an API key")).to_be_focused()
        tab = page.get_by_role("link", name="Sudoku")
        tab.focus()
        with page.expect_response("**/metrics"):
            pass
        expect(tab).to_be_focused()


# --- hostile text -----------------------------------------------------------------------------------------------------


def hostile_stream() -> str:
    """Return an answer with markup in its text, its thoughts, its tokens and its tool call."""
    draft = {"index": 0, "run": 0, "canvas": 0, "attempt": 0, "start": 0, "step": 1, "steps": 1, "text": HOSTILE}
    draft |= {"tokens": [5], "entropy": [0.0], "states": "s", "reason": "steps", "special": []}
    draft |= {"pieces": {"5": HOSTILE}, "candidates": [[[5, 1.0]]]}
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    delta = {"content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    events = [{"choices": [], "draft": draft}, {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def test_model_text_never_becomes_markup(browser, studio_files):
    with visiting(browser, studio_files) as page:
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


def test_names_of_models_and_adapters_never_become_markup(browser, studio_files):
    names = [f"{kind} {HOSTILE}" for kind in ("model", "adapter")]
    models = [{"id": name, "max_model_len": 8192} for name in names]
    models[1]["parent"] = names[0]
    with visiting(browser, studio_files) as page:
        page.route("**/v1/models", lambda route: route.fulfill(body=json.dumps({"data": models})))
        page.reload()
        for name in VIEWS:
            view = open_view(page, name)
            assert view.locator("img, script").count() == 0
            assert page.locator("svg[onload], [onerror], a[href^='javascript:']").count() == 0
        shown = page.locator("[data-view=server]").text_content()
        assert all(name in shown for name in names), "names are shown as text"
        assert page.evaluate("() => window.hurt") is None


# --- screens and accessibility ----------------------------------------------------------------------------------------


def open_view(page, name: str):
    page.goto(page.url.split("#")[0] + f"#{name}")
    view = page.locator(f"[data-view={name}]")
    view.wait_for()
    return view


@pytest.mark.parametrize("screen", SCREENS)
def test_every_view_fits_its_screen_with_its_button_(browser, studio_files, screen):
    with visiting(browser, studio_files, viewport=SCREENS[screen], color_scheme="light") as page:
        for name in VIEWS:
            view = open_view(page, name)
            if name != "server":
                expect(view.locator("button.primary").first).to_be_in_viewport(ratio=1)
            expect(page.get_by_role("link", name=name, exact=False).first).to_be_in_viewport(ratio=1)
            assert page.evaluate(WIDTH) <= SCREENS[screen]["width"], name
            assert view.evaluate(CLIPPED) == [], name


def test_hidden_tabs_are_announced_by_a_fade(browser, studio_files):
    with visiting(browser, studio_files, viewport={"width": 360, "height": 740}) as page:
        tabs = page.locator(".tabs")
        for name, faded in (("chat", ["tabs", "more-after"]), ("server", ["tabs", "more-before"])):
            open_view(page, name)
            expect(tabs).to_have_class(" ".join(faded))
            assert tabs.evaluate("e => getComputedStyle(e).maskImage").count("40px") == 1


def test_empty_canvases_name_the_button_of_their_view(browser, studio_files):
    with visiting(browser, studio_files) as page:
        for name in ("chat", "write", "compare", "json"):
            view = open_view(page, name)
            button = view.locator("button.primary").first.inner_text()
            for note in view.locator(".note").all_inner_texts():
                assert f"Press “{button}”" in note, name
        view = open_view(page, "write")
        view.get_by_label("Text", exact=True).fill("def f():")
        expect(view.locator(".note")).to_contain_text("Press “Continue”")
        expect(view.get_by_role("button", name="Continue", exact=True)).to_be_visible()


def test_settings_are_a_drawer_that_keeps_and_returns_the_focus(browser, studio_files):
    inside = "() => document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
    with visiting(browser, studio_files, viewport=SCREENS["narrow"], color_scheme="light") as page:
        view = open_view(page, "chat")
        button, drawer = view.get_by_role("button", name="Settings"), view.get_by_role("dialog", name="Settings")
        button.press("Enter")
        for _ in range(16):
            page.keyboard.press("Tab")
            assert page.evaluate(inside)
        drawer.get_by_text("Advanced").click()
        assert drawer.evaluate(CLIPPED) == [] and serious_violations(page) == []
        page.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        expect(button).to_be_focused()
        button.press("Enter")
        expect(drawer).to_be_visible()
        view = open_view(page, "write")  # as by the browser's Back button
        view.get_by_role("button", name="Insert hole").click()
        expect(drawer).to_be_hidden()


def test_no_view_scrolls_horizontally(browser, studio_files):
    with visiting(browser, studio_files, viewport={"width": 360, "height": 740}) as page:
        answered(page)
        page.locator("chat-view [role=option]").first.hover()
        for view in VIEWS:
            open_view(page, view)
            assert page.evaluate(WIDTH) <= 360, view


def test_axe_finds_no_serious_violation(browser, studio_files):
    """All rules in every view and in a chat with an answer; contrast of all views in the dark theme."""
    with visiting(browser, studio_files, viewport=SCREENS["narrow"], color_scheme="light") as page:
        for name in VIEWS:
            open_view(page, name)
            assert serious_violations(page) == [], name
        open_view(page, "chat")
        answered(page).locator("[role=option]").nth(2).click()
        assert serious_violations(page) == []
        page.emulate_media(color_scheme="dark")
        for name in VIEWS:
            open_view(page, name)
            assert serious_violations(page, ["color-contrast"]) == []


def test_api_reference_has_every_field_loads_no_other_host_and_is_accessible(browser, studio_files, tiny_directory):
    api, asked = create_app(ServerSettings(engine=EngineSettings(model=str(tiny_directory)))).openapi(), []
    with visiting(browser, "about:blank", viewport={"width": 360, "height": 740}) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.route("**/openapi.json", lambda route: route.fulfill(json=api))
        page.goto(studio_files + "studio/reference.html#post-v1-edits")
        edits, shared = page.locator("#post-v1-edits"), page.locator("#DiffusionFields")
        expect(edits).to_be_in_viewport()
        expect(edits.locator("pre")).to_contain_text(f"curl {studio_files}v1/edits")
        paths = dict.fromkeys(page.locator("section h2 code").all_text_contents())  # one heading per method
        assert list(paths)[: len(api["paths"])] == list(api["paths"])
        for shown, name in ((edits, "EditFields"), (shared, "DiffusionFields")):
            fields = api["components"]["schemas"][name]["properties"]
            assert set(shown.locator("dt > code").all_text_contents()) == set(fields)
            for field in fields.values():
                expect(shown).to_contain_text(field.get("description", ""))
        assert all(url.startswith(studio_files) for url in asked), asked
        assert page.evaluate(WIDTH) <= 360
        assert serious_violations(page) == []
        page.emulate_media(color_scheme="dark")
        assert serious_violations(page, ["color-contrast"]) == []
        edits.get_by_role("link", name="DiffusionFields").press("Enter")
        expect(shared).to_be_in_viewport()


# --- cost of a frame --------------------------------------------------------------------------------------------------


def test_a_step_changes_only_the_nodes_that_differ(browser, studio_files):
    """With 2,000 tokens and 500 steps, changed nodes are proportional to the difference of two canvases."""
    from tools.load.scrubbing import LONG_RUN

    with visiting(browser, studio_files, viewport={"width": 1280, "height": 800}) as page:
        page.evaluate(LONG_RUN)
        touched = page.evaluate(
            """async () => {
                const { panel, recording } = window.bench;
                panel.goTo(recording.length - 1);
                const seen = new MutationObserver(() => {});
                seen.observe(panel, { subtree: true, childList: true, characterData: true, attributes: true });
                const found = [];
                for (let index = recording.length - 2; index >= recording.length - 100; index -= 1) {
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

"""The studio with the bundled models: runs are shown, pinned and rewritten."""

import contextlib
import io
import json
import re

import httpx
import pytest

from tests.studio import (
    CLIPBOARD,
    PATIENCE,
    copied,
    curl_arguments,
    finished,
    open_view,
    setting,
    tokens,
    visiting,
)  # fmt: skip

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=PATIENCE)


WIDE = {"width": 1280, "height": 800}
HOSTILE = 'it\'s "quoted" \\ $HOME `id` {x}\n… 😀'
SCHEMA = {"type": "object", "properties": {"a": {"enum": [True, None]}}, "additionalProperties": False}


@pytest.fixture
def page(browser, studio):
    with visiting(browser, studio.url, viewport=WIDE) as page:
        yield page


@pytest.fixture(scope="module")
def answered(browser, studio):
    """A chat with an answer, and the drafts of the same request sent again. Tests must not change them."""
    with visiting(browser, studio.url, viewport=WIDE) as page:
        with page.expect_request("**/v1/chat/completions") as asked:
            view = ask(page, "Who are you?", steps=6)
        events = studio.events("/v1/chat/completions", asked.value.post_data_json)
        yield view, [event["draft"] for event in events if "draft" in event]


def ask(page, text: str, *, seed: int = 1, steps: int = 8, longest: int = 48):
    """Send a message in the chat, wait for the end of its answer, and return the view."""
    view = page.locator("chat-view")
    setting(view, {"Seed": seed, "Steps": steps, "Longest answer": longest})
    view.get_by_label("Message", exact=True).fill(text)
    view.get_by_role("button", name="Send").click()
    view.get_by_role("button", name="Retry").last.wait_for()
    return view


def scrub(slider, index: int) -> None:
    slider.evaluate("(e, i) => { e.value = i; e.dispatchEvent(new Event('input')); }", index)


def answer_kept(page) -> str:
    """Return the last answer from the browser's storage."""
    kept = page.evaluate("() => JSON.parse(localStorage.getItem('gesso.conversations'))")
    return kept["conversations"][0]["messages"][-1]["content"]


# --- chat -------------------------------------------------------------------------------------------------------------


def test_a_chat_is_saved_across_a_reload(page):
    view = ask(page, "Who are you?", steps=24)
    answer = view.locator(".message.assistant .text")
    expect(answer).to_contain_text("gesso-mini")
    said = answer.inner_text()
    page.reload()
    expect(page.locator("chat-view .message.assistant .text")).to_have_text(said)


def test_a_tool_call_is_shown_and_answered(page):
    view = page.locator("chat-view")
    setting(view, {"Seed": 1})
    view.get_by_role("button", name="Book a table").click()
    expect(view.locator(".call code").first).to_have_text("book_table")
    assert json.loads(view.locator(".call pre").inner_text())["party"] == 4
    view.get_by_label("Result of book_table").fill("done")
    view.get_by_role("button", name="Answer").click()
    expect(view.locator(".message.tool .text")).to_have_text("done")
    expect(view.locator(".message.assistant")).to_have_count(2)
    view.get_by_role("button", name="Retry").last.wait_for()


def test_stop_ends_an_answer_and_frees_its_slot(page, studio):
    view = page.locator("chat-view")
    setting(view, {"Steps": 1000, "Stopping rule": "fixed", "Longest answer": 256})
    view.get_by_label("Message", exact=True).fill("def f():")
    view.get_by_role("button", name="Send").click()
    view.locator("[role=option]").first.wait_for()
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".message .complaint")).to_have_text("stopped")
    studio.wait_metric("gesso_requests_running", 0)


# --- the canvas -------------------------------------------------------------------------------------------------------


def test_scrubbing_shows_the_canvas_of_each_step(answered):
    """Compare with the server's drafts: the same seed gives the same drafts."""
    view, drafts = answered
    pieces = {}
    slider = view.get_by_label("Step", exact=True)
    assert slider.get_attribute("max") == str(len(drafts) - 1)
    for draft in drafts:
        pieces |= draft["pieces"]
        scrub(slider, drafts.index(draft))
        expected = [pieces[str(token)].replace("\n", "↵") for token in draft["tokens"]]
        fill = [at for at in range(1, len(expected)) if draft["tokens"][at - 1 : at + 1] == [1, 1]]
        assert [text.replace("\n", "↵") for text in tokens(view)] == [
            "·" if at in fill else text for at, text in enumerate(expected)
        ]
        expect(view.locator(".counters")).to_contain_text(f"{draft['step']} of 6")
    assert drafts[0]["tokens"] != drafts[-1]["tokens"], "the canvas changed between the steps"
    expect(view.locator(".counters")).to_contain_text(re.compile("converged early|ran out of steps"))


def test_inspector_shows_candidates_and_history(answered):
    view, drafts = answered
    view.locator("[role=option]").nth(2).hover()
    inspector = view.locator("token-inspector")
    expect(inspector).to_contain_text("position 2")
    shares = [f"{100 * share:.0f} %" for _, share in drafts[-1]["candidates"][2] if share >= 0.1]
    assert [text.strip() for text in inspector.locator(".share").all_text_contents()][: len(shares)] == shares
    expect(inspector.locator(".candidate")).to_have_count(5)
    expect(inspector.locator(".history li").first).to_contain_text("step")


def test_keyboard_pins_and_selects_like_the_mouse(answered):
    view, _ = answered
    press = view.page.keyboard.press
    view.get_by_role("button", name="Grid").click()
    view.get_by_role("listbox").focus()
    for key in ("Home", "ArrowRight", "ArrowDown", "ArrowUp", "Enter"):
        press(key)
    expect(view.locator("[role=option]").nth(1)).to_have_class(re.compile(r"\bpin\b"))
    press("Enter")
    expect(view.locator(".t.pin")).to_have_count(0)
    press("Shift+ArrowRight")
    expect(view.get_by_role("button", name="Rewrite 2 tokens")).to_be_visible()
    press("Escape")
    expect(view.get_by_role("button", name="Rewrite")).to_have_count(0)


def test_compare_shows_the_same_step_of_two_settings_side_by_side(page):
    page.goto(page.url.split("#")[0] + "#compare")
    view = page.locator("compare-view")
    view.get_by_label("Longest answer").first.fill("16")
    for side, steps in ((0, 2), (1, 6)):
        setting(view, {"Steps": steps, "Stopping rule": "fixed"}, side)
        expect(view.get_by_role("heading", level=2).nth(side)).to_contain_text(f"steps {steps}")
    view.get_by_role("button", name="Run both").click()
    expect(view.get_by_role("status")).to_contain_text("% of the tokens are the same")
    left, right = view.get_by_label("Step", exact=True).all()
    last = int(right.get_attribute("max"))
    assert last > 1 == int(left.get_attribute("max"))
    for moved, other, step, expected in ((left, right, 1, 1), (right, left, 0, 0), (right, left, last, 1)):
        scrub(moved, step)
        expect(other).to_have_js_property("value", str(expected))
    view.locator("[role=option]").first.hover()
    view.locator(".candidate").first.wait_for()  # only on the left, so its inspector is higher
    for part in (".counters", ".stage", "run-timeline", ".run-tools"):
        first, second = (found.bounding_box() for found in view.locator(part).all())
        assert (first["y"], first["height"]) == (second["y"], second["height"]), part


# --- pins and spans ---------------------------------------------------------------------------------------------------


def test_pins_are_kept_when_denoising_again(page):
    """Pin a clicked token, and a candidate at another position."""
    view = ask(page, "Who are you?", steps=8)
    cells = view.locator("[role=option]")
    clicked, other = cells.nth(1).inner_text(), cells.nth(3).inner_text()
    cells.nth(1).click()
    cells.nth(3).hover()
    choice = view.locator(".candidate").nth(1)
    wanted = choice.locator("code").inner_text().replace("␣", " ").replace("↵", "\n")
    choice.click()
    assert wanted != other
    view.get_by_role("button", name="Re-denoise with 2 pins").click()
    finished(view)
    expect(cells.nth(3)).to_have_text(wanted)
    assert tokens(view)[1] == clicked
    expect(view.locator(".t.pin")).to_have_count(2)


def test_rewriting_a_span_keeps_the_rest(page):
    view = ask(page, "Who are you?", steps=24)
    before = answer_kept(page)
    cells = view.locator("[role=option]")
    head, chosen = ("".join(tokens(view)[part]) for part in (slice(2), slice(2, 5)))
    cells.nth(2).hover()
    page.mouse.down()
    cells.nth(4).hover()
    page.mouse.up()
    view.get_by_role("button", name="Rewrite 3 tokens").click()
    finished(view)
    after = answer_kept(page)
    assert after.startswith(head) and after.endswith(before.removeprefix(head + chosen))
    expect(view.locator("canvas-view .given").last).to_have_text(before.removeprefix(head + chosen))


def test_a_hole_is_filled_where_it_was_inserted(page):
    page.goto(page.url.split("#")[0] + "#write")
    view = page.locator("write-view")
    editor = view.get_by_label("Text", exact=True)
    editor.fill("def area(r):\n    return 3.14 * \n\nprint(area(2))\n")
    editor.evaluate("e => { const at = e.value.indexOf('* ') + 2; e.setSelectionRange(at, at); }")
    view.get_by_role("button", name="Insert hole").click()
    setting(view, {"Longest answer": 8, "Seed": 1})
    view.get_by_role("button", name="Fill the hole").click()
    expect(editor).not_to_have_value(re.compile("…"))
    filled = editor.input_value()
    assert filled.startswith("def area(r):\n    return 3.14 * ") and filled.endswith("\n\nprint(area(2))\n")
    assert tokens(view), "the steps were shown"
    expect(view.locator(".runs tbody tr")).to_have_count(1)
    editor.evaluate("e => e.setSelectionRange(4, 8)")
    editor.dispatch_event("select")
    view.get_by_role("button", name="Rewrite selection").click()
    expect(view.locator(".runs tbody tr")).to_have_count(2)
    changed = editor.input_value()
    assert changed.startswith("def ") and changed.endswith(filled[8:])


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_sudoku_is_solved_and_an_invalid_puzzle_is_marked(page):
    page.goto(page.url.split("#")[0] + "#sudoku")
    view = page.locator("sudoku-view")
    view.get_by_label("Seed").fill("7")
    view.get_by_role("button", name="Solve").click()
    expect(view.get_by_role("status")).to_contain_text("Solved in")
    cells = [view.locator(".board input").nth(i).input_value() for i in range(81)]
    for row in range(9):
        assert sorted(cells[9 * row : 9 * row + 9]) == list("123456789")
    view.get_by_label("Row 1, column 3").fill("5")
    expect(view.locator(".wrong")).not_to_have_count(0)
    view.get_by_role("button", name="Solve").click()
    expect(view.get_by_role("alert")).to_contain_text("breaks the rules")


def test_bundled_models_are_served_by_name(studio):
    """The second model's engine starts with its first request."""
    names = [model["id"] for model in studio.http.get("/v1/models").json()["data"]]
    assert names == ["gesso", "gesso-sudoku"]
    asked = {"prompt": "5 3 0 0 7", "max_tokens": 8, "seed": 1, "diffusion": {"steps": 2}}
    texts = [studio.http.post("/v1/completions", json=asked | {"model": name}).json() for name in names]
    assert [text["model"] for text in texts] == names
    assert texts[0]["choices"][0]["text"] != texts[1]["choices"][0]["text"]
    assert studio.http.post("/v1/completions", json=asked | {"model": "other"}).status_code == 404


def test_json_view_answers_by_the_schema(page):
    page.goto(page.url.split("#")[0] + "#json")
    view = page.locator("form-view")
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    view.get_by_label("JSON schema").fill(json.dumps(schema))
    view.get_by_role("button", name="Answer in JSON").click()
    expect(view.locator(".facts td")).to_have_text(re.compile("red|blue"))


def test_engine_text_never_becomes_markup(page):
    """The schema forces the text to be markup."""
    text = '<img src=x onerror="window.hurt=1">'
    page.goto(page.url.split("#")[0] + "#json")
    view = page.locator("form-view")
    view.get_by_label("JSON schema").fill(json.dumps({"type": "string", "const": text}))
    view.get_by_role("button", name="Answer in JSON").click()
    expect(view.locator(".facts td")).to_have_text(text)
    assert page.evaluate("() => window.hurt") is None and view.locator("img").count() == 0


# --- copied requests --------------------------------------------------------------------------------------------------


def test_copied_requests_work_when_pasted(browser, studio):
    """The Python program and the curl command give the same text, because they have the same seed."""
    with visiting(browser, studio.url, **CLIPBOARD) as page:
        for name, field in (("chat", "Message"), ("write", "Text"), ("compare", "Message"), ("json", "Request")):
            view = open_view(page, name)
            view.get_by_label(field, exact=True).fill(HOSTILE)
            if name == "json":
                view.get_by_label("JSON schema").fill(json.dumps(SCHEMA))
            setting(view, {"Steps": 1} | ({} if name == "compare" else {"Seed": 1, "Longest answer": 16}))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(copied(view, "Copy as Python"), {})
            url, *options, body = curl_arguments(copied(view, "Copy as curl"))
            assert url.startswith(studio.url) and options == ["-H", "Content-Type: application/json", "-d"]
            assert HOSTILE in (json.loads(body).get("prompt"), json.loads(body).get("messages", [{}])[0].get("content"))
            choice = httpx.post(url, content=body, headers={"content-type": "application/json"}).json()["choices"][0]
            assert printed.getvalue() == (choice.get("text") or choice["message"]["content"]) + "\n"

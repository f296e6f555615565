"""The chat with simulated answers: nothing is lost when a run is left, stopped, wrong or too large."""

import json
import re

import pytest

from tests.studio import PATIENCE, TEXT, answering, finished, said, setting, stream, tokens, visiting

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def page(browser, studio_files):
    with visiting(browser, studio_files, viewport={"width": 1280, "height": 800}) as page:
        yield page


def never_answering(page) -> None:
    page.route("**/v1/chat/completions", lambda route: None)


def ask(page, text: str):
    view = page.locator("chat-view")
    view.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    return view


def kept(page) -> list[dict]:
    return page.evaluate("() => JSON.parse(localStorage.getItem('gesso.conversations'))?.conversations ?? []")


def titles(page) -> list[str]:
    return [conversation["title"] for conversation in kept(page)]


# --- conversations ----------------------------------------------------------------------------------------------------


def test_leaving_a_conversation_during_an_answer_keeps_it(page):
    never_answering(page)
    view = ask(page, "First")
    view.get_by_role("button", name="New").click()
    finished(view)
    expect(view.locator(".welcome")).to_be_visible()
    assert titles(page) == ["First"]
    view.get_by_role("button", name="First", exact=True).click()
    expect(view.locator(".message.user .text")).to_have_text("First")
    expect(view.locator(".message.assistant .complaint")).to_have_text("stopped")


def test_a_conversation_deleted_during_an_answer_stays_deleted(page):
    never_answering(page)
    view = ask(page, "First")
    view.get_by_role("button", name="Delete First").click()
    finished(view)
    expect(view.locator(".conversations li")).to_have_count(0)
    assert kept(page) == []


def test_a_message_is_saved_before_its_answer_arrives(page):
    never_answering(page)
    ask(page, "First")
    page.reload()
    expect(page.locator(".message.user .text")).to_have_text("First")


def test_two_tabs_share_their_conversations(page):
    other = page.context.new_page()
    other.goto(page.url)
    for tab, text in ((page, "From one"), (other, "From the other")):
        answering(tab, said())
        ask(tab, text).get_by_role("button", name="Retry").wait_for()
    assert titles(other) == ["From the other", "From one"]
    expect(page.locator(".conversation")).to_have_text(["From the other", "From one"])


def test_an_answer_is_shown_when_the_storage_is_full(page):
    answering(page, said())
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('full'); }; }")
    view = ask(page, "Hello")
    view.get_by_role("button", name="Retry").wait_for()
    expect(view.locator(".message.assistant .text")).to_have_text(TEXT)
    expect(view.locator(".talk > .complaint")).to_contain_text("storage is full")


def test_export_and_import_of_conversations(page, tmp_path):
    answering(page, said())
    ask(page, "Who are you?").get_by_role("button", name="Retry").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    path = tmp_path / "conversations.json"
    download.value.save_as(path)
    conversation = json.loads(path.read_text())["conversations"][0]
    assert [(m["role"], m["content"]) for m in conversation["messages"]] == [
        ("user", "Who are you?"),
        ("assistant", TEXT),
    ]
    page.get_by_role("button", name="Delete Who are you?").click()
    expect(page.locator(".message")).to_have_count(0)
    page.locator(".side input[type=file]").set_input_files(path)
    expect(page.locator(".message.user .text")).to_have_text("Who are you?")
    path.write_text('{"version": 1, "conversations": [{"id": 5}]}')
    page.locator(".side input[type=file]").set_input_files(path)
    expect(page.locator("chat-view .talk > .complaint")).to_contain_text("has no conversations")


def test_import_rejects_malformed_tool_calls(page, tmp_path):
    path = tmp_path / "conversations.json"
    message = {"role": "assistant", "content": "", "toolCalls": [{}]}
    path.write_text(json.dumps({"version": 1, "conversations": [{"id": "1", "title": "t", "messages": [message]}]}))
    page.locator(".side input[type=file]").set_input_files(path)
    expect(page.locator("chat-view .talk > .complaint")).to_contain_text("has no conversations")
    assert kept(page) == []


# --- tools ------------------------------------------------------------------------------------------------------------


def test_invalid_tools_send_nothing_and_lose_nothing(page):
    asked = answering(page, said())
    view = ask(page, "First")
    retry = view.get_by_role("button", name="Retry")
    retry.wait_for()
    for wrong in ("{}", "[", "null"):
        setting(view, {"Tools": wrong})
        retry.click()
        ask(page, "Second")
        expect(view.locator(".talk > .complaint")).to_contain_text("Tools:")
        expect(view.get_by_label("Message", exact=True)).to_have_value("Second")
        expect(view.locator(".message.assistant .text")).to_have_text(TEXT)
    assert len(asked) == 1


def test_retry_uses_the_next_seed(page):
    asked = answering(page, said())
    view = ask(page, "Who are you?")
    view.get_by_role("button", name="Retry").click()
    expect(view.locator(".actions")).to_contain_text(f"seed {(asked[0]['seed'] + 1) % 2**32}")
    assert asked[1]["seed"] == (asked[0]["seed"] + 1) % 2**32


def test_results_of_all_tool_calls_are_sent_together_once(page):
    asked = answering(page, said("", ("weather", "time")))
    view = ask(page, "First")
    view.get_by_label("Result of weather").fill("sunny")
    page.keyboard.press("Enter")
    expect(view.locator(".message.tool")).to_have_count(1)
    expect(view.get_by_label("Result of weather")).to_have_count(0)
    assert len(asked) == 1
    view.get_by_label("Result of time").fill("noon")
    page.keyboard.press("Enter")
    expect(view.locator(".message.assistant")).to_have_count(2)
    finished(view)
    results = [(m["tool_call_id"], m["content"]) for m in asked[1]["messages"] if m["role"] == "tool"]
    assert results == [("weather", "sunny"), ("time", "noon")]
    expect(view.get_by_label("Result of weather")).to_have_count(1)  # of the second answer, which calls it again


# --- the canvas -------------------------------------------------------------------------------------------------------


def answered(page):
    answering(page, said())
    view = ask(page, "Hello")
    view.get_by_role("button", name="Retry").wait_for()
    return view


def drag(view, first: int, last: int) -> None:
    cells, mouse = view.locator("[role=option]"), view.page.mouse
    cells.nth(first).hover()
    mouse.down()
    cells.nth(last).hover()
    mouse.up()


def test_a_span_of_a_rewritten_span_is_rewritten_within_the_whole_text(page):
    """The last run is only a part of the text, and may repeat the end of the text before it."""
    view, asked = answered(page), []

    def edit(route) -> None:
        asked.append(route.request.post_data_json)
        choice = {"index": 0, "text": "To be! or not", "replacement": " be!", "finish_reason": "stop"}
        route.fulfill(body=stream(choice, pieces=["To", " be", "!"]))

    page.route("**/v1/edits", edit)
    drag(view, 1, 2)
    view.get_by_role("button", name="Rewrite 2 tokens").click()
    expect(view.locator("canvas-view .given").last).to_have_text(" or not")
    assert tokens(view) == ["To", " be", "!"]
    view.locator("[role=option]").nth(1).click()
    view.get_by_role("button", name="Re-denoise").click()
    expect(view.locator(".talk > .complaint")).to_contain_text("not with a rewritten span")
    drag(view, 1, 2)
    view.get_by_role("button", name="Rewrite 2 tokens").click()
    finished(view)
    assert [(body["input"], body["span"]) for body in asked] == [(TEXT, [2, 6]), ("To be! or not", [2, 6])]


def test_a_drag_may_end_outside_the_canvas(page):
    view, mouse = answered(page), page.mouse
    cells = view.locator("[role=option]")
    cells.nth(1).hover()
    mouse.down()
    cells.nth(2).hover()
    view.locator(".legend").hover()
    mouse.up()
    expect(view.get_by_role("button", name="Rewrite 2 tokens")).to_be_visible()
    cells.nth(4).hover()
    expect(view.locator("[aria-selected=true]")).to_have_count(2)


def test_only_panels_that_support_pins_offer_them(page):
    answered(page)
    expect(page.locator("chat-view token-inspector")).to_contain_text("Click it to pin it")
    page.goto(page.url.split("#")[0] + "#compare")
    view = page.locator("compare-view")
    expect(view.locator("token-inspector").first).not_to_contain_text("pin")
    view.get_by_role("button", name="Run both").click()
    view.locator("[role=option]").first.hover()
    expect(view.locator(".candidate")).to_have_count(1)
    expect(view.locator("button.candidate")).to_have_count(0)


# --- keyboard ---------------------------------------------------------------------------------------------------------


def test_keys_in_an_empty_canvas_and_the_skip_link_keep_the_view(page):
    page.goto(page.url.split("#")[0] + "#write")
    page.locator("write-view [role=listbox]").focus()
    for key in ("ArrowDown", "End", "Enter", "Escape"):
        page.keyboard.press(key)
    page.goto(page.url.split("#")[0] + "#sudoku")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("sudoku-view")).to_be_visible()
    assert re.search("#sudoku$", page.url)

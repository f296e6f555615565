"""The studio's tools: the choice of the model, copied requests, and saved runs."""

import json
import re

import pytest

from gesso.trace import html
from gesso.trace.run import CANDIDATES, TracedRun, recorded
from tests.studio import (
    CLIPBOARD,
    PATIENCE,
    TEXT,
    copied,
    curl_arguments,
    finished,
    open_view,
    said,
    setting,
    stream,
    tokens,
    visiting,
)  # fmt: skip

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=PATIENCE)

MODELS = [{"id": "base", "max_model_len": 64}, {"id": "poet", "max_model_len": 64, "parent": "base"}]
PRIMARY = {"chat": "Who are you?", "write": "Fill the hole", "compare": "Run both", "json": "Answer in JSON"}


@pytest.fixture
def page(browser, studio_files):
    """The page without an engine, for people who prefer reduced motion: nothing plays by itself."""
    with visiting(browser, studio_files, reduced_motion="reduce", **CLIPBOARD) as page:
        yield page


# --- models -----------------------------------------------------------------------------------------------------------


def test_the_chosen_model_is_kept_and_used_by_every_view(page):
    asked: list[str] = []

    def answer(route) -> None:
        asked.append(route.request.post_data_json["model"])
        route.fulfill(body=stream(said() | {"text": TEXT}))

    page.route("**/v1/models", lambda route: route.fulfill(json={"data": MODELS}))
    page.route(re.compile("/v1/(chat/)?completions$"), answer)
    page.reload()
    picker = page.get_by_label("Model", exact=True)
    expect(picker.locator("option")).to_have_text(["base", "poet (adapter of base)"])
    picker.select_option("poet")
    page.reload()
    expect(picker).to_have_value("poet")
    for name, button in PRIMARY.items():
        view = open_view(page, name)
        view.get_by_role("button", name=button).click()
        view.get_by_role("option").first.wait_for()
        finished(view)
    assert asked == ["poet"] * 5, "one request per view, two for the comparison"


def test_sudoku_uses_its_own_model_or_an_adapter_of_it(page):
    models = [*MODELS, {"id": "gesso-sudoku"}, {"id": "solver", "parent": "gesso-sudoku"}]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": models}))
    page.reload()
    view = open_view(page, "sudoku")
    for chosen, used in (("poet", "gesso-sudoku"), ("solver", "solver")):
        page.get_by_label("Model", exact=True).select_option(chosen)
        expect(view.get_by_text("The model of this view is")).to_have_text(f"The model of this view is {used}.")
        assert f'"model": "{used}"' in copied(view, "Copy as curl")


# --- copied requests --------------------------------------------------------------------------------------------------


def test_a_copied_request_has_a_placeholder_instead_of_the_key(page):
    page.evaluate("() => sessionStorage.setItem('gesso.key', 'open sesame')")
    view = open_view(page, "sudoku")
    for text in (copied(view, "Copy as curl"), copied(view, "Copy as Python")):
        assert "Bearer YOUR_API_KEY" in text and "sesame" not in text and "gesso-sudoku" in text


def test_the_request_of_the_shown_run_is_copied(page):
    page.route("**/v1/completions", lambda route: route.fulfill(body=stream({"index": 0, "text": TEXT})))
    view = open_view(page, "write")
    with page.expect_request("**/v1/completions") as asked:
        view.get_by_role("button", name="Fill the hole").click()
    finished(view)
    sent = asked.value.post_data_json
    body = json.loads(curl_arguments(copied(view, "Copy as curl"))[-1])
    assert body == {name: sent[name] for name in ("prompt", "suffix", "model", "seed")}


def test_infill_chooses_the_length_of_a_hole_unless_one_is_set(page):
    page.route("**/v1/completions", lambda route: route.fulfill(body=stream({"index": 0, "text": TEXT})))
    view = open_view(page, "write")
    with page.expect_request("**/v1/completions") as asked:
        view.get_by_role("button", name="Fill the hole").click()
    finished(view)
    assert "max_tokens" not in asked.value.post_data_json
    setting(view, {"Longest answer": 9})
    view.get_by_role("button", name="Undo").click()
    with page.expect_request("**/v1/completions") as asked:
        view.get_by_role("button", name="Fill the hole").click()
    assert asked.value.post_data_json["max_tokens"] == 9


def test_an_empty_chat_has_no_request_to_copy(page):
    view = open_view(page, "chat")
    view.get_by_role("button", name="Copy as curl").click()
    expect(view.locator(".run-tools .complaint")).to_have_text("Type a message first.")


# --- recorded runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tiny):
    drafts = []
    options = {"max_new_tokens": 24, "canvas_length": 16, "steps": 5, "seed": 3, "draft_logprobs": CANDIDATES}
    *_, done = recorded(tiny, tiny.stream("Once", **options), drafts)
    return TracedRun("Once", drafts, done.result)


def steps_of(view) -> list[list[str]]:
    """Return the tokens of the canvas at each step, from first to last, by the arrow key of the slider."""
    slider = view.get_by_label("Step", exact=True)
    found = [tokens(view)]
    for _ in range(int(slider.get_attribute("max"))):
        slider.press("ArrowRight")
        found.append(tokens(view))
    return found


def test_an_empty_chat_replays_a_recorded_run_from_its_first_step(page):
    view = page.locator("chat-view")
    expect(view.get_by_label("Step", exact=True)).to_have_js_property("value", "0")
    steps = steps_of(view)
    assert steps[0] != steps[-1]
    view.get_by_role("button", name="Play").click()
    expect(view.get_by_role("button", name="Pause")).to_be_visible()
    view.get_by_role("option").first.click()
    expect(view.locator(".t.pin")).to_have_count(0)  # its request is unknown


def test_a_saved_run_and_a_trace_replay_on_an_empty_canvas(page, run, tmp_path):
    trace, saved = tmp_path / "run.html", tmp_path / "run.json"
    trace.write_text(html.page(run))
    first = open_view(page, "write")
    first.locator(".run-tools input").set_input_files(trace)
    expect(first.get_by_label("Step", exact=True)).to_have_js_property("value", "0")
    expect(first.locator(".note")).to_contain_text("run.html")
    expect(first.locator(".given").first).to_have_text("Once")
    with page.expect_download() as download:
        first.get_by_role("button", name="Save run").click()
    download.value.save_as(saved)
    second = open_view(page, "json")
    second.locator(".run-tools input").set_input_files(saved)
    expect(second.locator(".note")).to_contain_text("run.json")  # an empty view is at step 0, too
    expect(second.get_by_label("Step", exact=True)).to_have_js_property("value", "0")
    steps = steps_of(second)
    assert len(steps) == len(run.drafts)
    open_view(page, "write")
    assert steps == steps_of(first)
    for view in (first, second):
        expect(view.locator(".counters")).to_contain_text("ran out of steps")


def test_a_file_without_a_run_is_rejected(page, tmp_path):
    path = tmp_path / "other.json"
    view = open_view(page, "write")
    for text in ("{}", "not JSON", '{"prompt": "", "drafts": [{}]}', '{"prompt": "", "drafts": []}'):
        path.write_text(text)
        view.locator(".run-tools input").set_input_files(path)
        expect(view.locator(".run-tools .complaint")).to_contain_text("other.json has no run")
        view.get_by_role("button", name="Save run").click()
        expect(view.locator(".run-tools .complaint")).to_contain_text("There is no run yet")

"""The drawing of a graph in the studio: which texts are drawn, and how edges appear as they settle."""

import json

import pytest

from tests.studio import PATIENCE, open_view, serious_violations, visiting

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=PATIENCE)

READ = """async (text) => {
  const { graphIn } = await import("/studio/graph.js");
  const { whole, vertices, edges } = graphIn(text);
  return whole ? [vertices.join(" "), edges.map(({ ends }) => ends.join("")).join(" ")] : null;
}"""
GRAPHS = {
    "a-b a-c b-d": ["a b c d", "ab ac bd"],
    "1-2, 2-10, 10-1": ["1 2 10", "12 210 101"],
    "graph {\n  a -- b;\n  b -- c;\n  c -- d;\n}": ["a b c d", "ab bc cd"],
    '{"vertices": ["a", "b", "c"], "edges": [["a", "b"], ["b", "c"], ["a", "c"]]}': ["a b c", "ab bc ac"],
    "b 1\nc 0 1\nd 1 0 0\ne 0 0 0 0\n": ["a b c d e", "ab bc ad"],
    "b 1\nc 0 1\nd 1 def 0\n": ["a b c d", "ab bc ad"],  # a draft
}
OTHERS = (
    "",
    "a-b",
    "A state-of-the-art, well-known x-y plot of a-b, c-d and e-f in one-to-one text.",
    "on 2026-11-18, 10-12 a-b",
    "def f(a, b, c):\n    return a - b - c - d",
    "[[1, 2], [3, 4], [5, 6]]",
    "- a\n- b\n- c\n",
)
# Pieces of two steps. In the first, the row of c is noise and the edge of a and d is open.
STEPS = (
    (["b", " 1", "\n", "im", " port", "\n", "d", " 1", " 0", " 1"], "sss....." + "ss"),
    (["b", " 1", "\n", "c", " 0", " 1", "\n", "d", " 1", " 0", " 1"], "s" * 11),
)


@pytest.fixture
def page(browser, studio_files):
    with visiting(browser, studio_files, reduced_motion="reduce") as page:
        yield page


def stream_of(steps, text: str) -> str:
    """Return a stream with one draft for each step, and then the text."""
    events, numbers = [], {}
    for number, (pieces, states) in enumerate(steps, start=1):
        tokens = [numbers.setdefault(piece, len(numbers)) for piece in pieces]
        draft = {"index": 0, "run": 0, "canvas": 0, "attempt": 0, "start": 0, "step": number, "steps": len(steps)}
        draft |= {"tokens": tokens, "entropy": [0.0] * len(tokens), "states": states, "special": []}
        draft |= {"text": "".join(pieces), "pieces": dict(zip(tokens, pieces, strict=True))}
        draft |= {"reason": "steps" if number == len(steps) else None, "candidates": [[[0, 1.0]]] * len(tokens)}
        events.append({"choices": [], "draft": draft})
    events.append({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def continued(page, steps):
    """Continue a text in the view `write` with these steps, and return the view."""
    text = "".join(steps[-1][0])
    page.route("**/v1/completions", lambda route: route.fulfill(body=stream_of(steps, text)))
    view = open_view(page, "write")
    view.get_by_label("Text", exact=True).fill("graph:\n")
    view.get_by_role("button", name="Continue").click()
    expect(view.get_by_label("Text", exact=True)).to_have_value("graph:\n" + text)
    return view


def test_graphs_in_every_notation_are_recognized(page):
    assert {text: page.evaluate(READ, text) for text in GRAPHS} == GRAPHS


def test_other_texts_are_not_taken_for_graphs(page):
    assert [text for text in OTHERS if page.evaluate(READ, text) is not None] == []


def test_a_graph_is_drawn_at_every_step(page):
    view = continued(page, STEPS)
    drawing = view.get_by_role("img", name="Graph with 4 vertices and 4 edges")
    expect(drawing).to_be_visible()
    expect(drawing.locator("line.settled")).to_have_count(4)
    expect(drawing.locator("text")).to_have_text(["a", "b", "c", "d"])
    places = drawing.locator("circle").evaluate_all(
        "(all) => all.map((e) => [+e.cx.baseVal.value, +e.cy.baseVal.value])"
    )
    assert all(0 < value < 240 for place in places for value in place)
    assert min(abs(x - u) + abs(y - v) for i, (x, y) in enumerate(places) for u, v in places[:i]) > 40
    assert not serious_violations(page)

    view.get_by_label("Step", exact=True).evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    drawing = view.get_by_role("img", name="Graph with 4 vertices and 3 edges")
    expect(drawing.locator("line.open")).to_have_count(1)  # a and d
    expect(drawing.locator("line.settled")).to_have_count(2)
    assert drawing.locator("circle").evaluate_all(
        "(all) => all.map((e) => [+e.cx.baseVal.value, +e.cy.baseVal.value])"
    ) == places, "vertices stay where they are"  # fmt: skip


def test_the_drawing_is_hidden_for_other_texts(page):
    view = continued(page, STEPS)
    expect(view.locator("graph-view svg")).to_be_visible()
    page.unroute("**/v1/completions")
    view = continued(page, [(["To", " be"], "ss")])
    expect(view.locator("graph-view")).to_be_hidden()

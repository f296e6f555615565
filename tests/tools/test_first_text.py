"""The measurement of the first text of a stream."""

from types import SimpleNamespace

from tools.load import first_text


def test_the_share_counts_steps_of_the_first_canvas():
    def counted(*drafts):
        first = first_text.First()
        for index, final in drafts:
            canvas = SimpleNamespace(index=index)
            first.add(SimpleNamespace(canvas=canvas, final_tokens=final, decode=lambda tokens: "x" * len(tokens)))
        return first.shown_at, first.steps, first.share

    assert counted((0, ()), (0, ()), (0, (5,)), (0, (5, 6)), (1, (5, 6, 7))) == (3, 4, 0.75)
    assert counted((0, ()), (0, ()), (1, (5,))) == (None, 2, 1.0)


def test_first_text_is_measured_on_the_items_of_a_task(served_model):
    found = first_text.measure(str(served_model), "fast", 2, tasks=["structured"])
    assert found["structured"]["answers"] == 2 and 0 < found["mean_share"] <= 1

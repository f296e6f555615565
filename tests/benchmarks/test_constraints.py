"""The cost of a constraint per step."""

from benchmarks import constraints


def test_the_cost_of_a_constraint_is_measured():
    found = constraints.measure(fields=3, steps=2, vocabulary=4096, canvas=32)
    assert found["vocabulary"] == 4096 and found["states"] > 50
    assert all(
        found[name] > 0 for name in ("search_ms", "search_ms_worst", "candidates_ms", "compile_seconds", "step_ms")
    )
    assert {"any_text_share", "any_line_share"} <= found.keys()

"""What events say about a canvas."""

from dataclasses import replace

import torch

from gesso import Draft


def test_a_position_has_the_letter_of_its_most_lasting_state(tiny):
    drafts = tiny.stream([2, 5, 6], max_new_tokens=8, canvas_length=8, steps=4, stopping="fixed", pins={2: 9}, seed=1)
    last = [event for event in drafts if isinstance(event, Draft)][-1]
    assert last.states[2] == "p"

    def flags(text):
        return torch.tensor([letter == "x" for letter in text])

    before, after = (
        replace(last.canvas.history[-1], argmax_C=torch.tensor(row)) for row in ([3] * 8, [3] * 6 + [4] * 2)
    )
    canvas = replace(last.canvas, history=(before, after), accepted_C=flags(".xxxx.xx"), settled_C=flags("..x.x..x"))
    draft = replace(last, canvas=canvas)
    assert draft.states == ".spsf.af"
    assert draft.stable == [False, True, True, True, True, False, False, False]
    assert replace(draft, canvas=replace(canvas, accepted_C=None, settled_C=None)).states == "..p....."
    assert replace(draft, before=(7, 7)).states == "psfsf.af"  # pins count from the start of the text

"""`gesso tune`: find the settings that take the fewest passes without a lower quality.

- `grid`: the settings to try.
- `judge`: the quality of answers, by their expected answers or by the model.
- `run`: the whole run: split the items, measure every candidate, confirm the choice on held-out items.
- `report`: the result as text, JSON, SVG and preset.

A pass is a denoising step of a canvas, or a token written by itself: one run of the network over the text that
is being written. A finished canvas is committed in the pass of the next canvas' first step. Reading the prompt does not
count: it is the same work with all settings.
"""

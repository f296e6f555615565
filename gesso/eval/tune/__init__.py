"""`gesso tune`: find the settings that take the fewest passes without a lower quality.

- `candidates`: the settings to try, a fixed set for a checkpoint and a seed.
- `measure`: answers to items with several settings, and their quality.
- `search`: successive halving of the candidates on the tuning items, and the choice among the rest.
- `run`: the whole run: split the items, search, and confirm the choice on held-out items.
- `report`: the result as text, JSON, SVG and preset.

A pass is a denoising step of a canvas, or a token written by itself: one run of the network over the text that
is being written. A finished canvas is committed in the pass of the next canvas' first step. Reading the prompt does not
count: it is the same work with all settings.
"""

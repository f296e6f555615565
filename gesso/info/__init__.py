"""`gesso info`: the size of a checkpoint, the memory it needs, and its fit on a graphics card.

- `report`: architecture, parameters, files and problems of a checkpoint.
- `memory`: bytes of weights and KV cache. `workspace`: bytes of a pass beside them.
- `hardware`: datasheet figures of graphics cards. `fit`: what fits on a card, and a lower bound for the time of a step.
- `render`: both as tables on a terminal.
"""

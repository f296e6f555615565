"""The size of a checkpoint, the memory it needs, and its fit on a device or a graphics card.

- `report`: architecture, parameters, files and problems of a checkpoint.
- `memory`: bytes of weights and KV cache. `workspace`: bytes of a pass beside them.
- `device`: the memory of this machine's devices. `budget`: what fits in it, also for `gesso.load` and the server.
- `hardware`: datasheet figures of graphics cards. `fit`: what fits on a card, and a lower bound for the time of a step.
- `render`: both as tables on a terminal.
"""

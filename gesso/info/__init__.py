"""The report on a checkpoint, and its fit on a graphics card. The figures are counted by `gesso.memory`.

- `report`: architecture, parameters, memory, files and problems of a checkpoint. `formats`: how it is stored.
- `fit`: what fits on a card of `gesso.cards`, and a lower bound for the time of a step.
- `precisions`: the rows and columns of the tables. `verdict`: the first line. `render`: all as tables on a terminal.
"""

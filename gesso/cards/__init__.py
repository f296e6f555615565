"""Graphics cards: what a card has, by data sheet for the named ones, and by its driver for the one that runs.

- `card`: the class, and what follows from the compute capability. Nothing else in Gesso compares capabilities.
- `named`: the cards of `gesso info --gpu`.
- `running`: the card of a device.
"""

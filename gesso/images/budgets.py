"""How many soft tokens an image may become."""

BUDGETS = (70, 140, 280, 560, 1120)  # the numbers that Gemma 4 was trained with
BUDGET = 280
# OpenAI's levels of detail.
DETAILS = {"low": BUDGETS[0], "auto": BUDGET, "high": BUDGETS[-1]}

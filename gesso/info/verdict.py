"""The first line of `gesso info MODEL --gpu CARD`: whether the model fits, in which form, and how to run it.

For DiffusionGemma it is the choice of the alias on that card, which leaves a share of the memory free. For any other
model it is the choice of the plan.
"""

from gesso.cards.card import Card
from gesso.checkpoint import aliases
from gesso.checkpoint.random_weights import PUBLISHED_SHAPE
from gesso.errors import DoesNotFitError
from gesso.info.fit import CardPlan
from gesso.info.precisions import QUANTIZE
from gesso.memory.device import SHARE, DeviceMemory

# The precision of the plan whose weights are about as large as those of a published checkpoint on the card.
PRECISIONS = {"bf16": "fp8", "fp8": "fp8", "nvfp4": "4-bit", "q4": "4-bit"}  # Google's is quantized to fp8
TITLES = {"bf16": "fp8, quantized while loading", "fp8": "FP8", "nvfp4": "NVFP4", "q4": "GGUF Q4_K_M"}


def verdict(model: str | None, plan: CardPlan) -> str:
    """Return the verdict on a model by the name that the command was given."""
    if model in (aliases.ALIAS, PUBLISHED_SHAPE):
        return _of_alias(plan)
    name = "" if model is None else f" -m {model}"
    fit = plan.chosen()
    if fit is None:
        return f"Does not fit {_title(plan.card)}. {plan.reason}"
    precision = "" if plan.choice == "bf16" else f" --quantize {QUANTIZE[fit.precision]}"
    streamed = 0 if fit.streamed is None else fit.streamed.layers
    return _sentence(plan, fit.precision, fit.weight_bytes, streamed) + f" Run: gesso chat{name}{precision}"


def choice_on(card: Card) -> aliases.CheckpointChoice:
    """Return the checkpoint that the alias chooses on a card of which nothing is in use."""
    memory = DeviceMemory(total=card.total_bytes, free=card.usable_bytes, device="cuda")
    return aliases.choose("cuda", memory.budget(SHARE), None)


def _of_alias(plan: CardPlan) -> str:
    try:
        choice = choice_on(plan.card)
    except DoesNotFitError as error:
        return f"Does not fit {_title(plan.card)}: {error}"
    source = next(name for name, published in aliases.SOURCES.items() if published.name == choice.name)
    fit = next(fit for fit in plan.fits if fit.precision == PRECISIONS[source])
    streamed = 0 if fit.streamed is None else fit.streamed.layers
    return (
        _sentence(plan, TITLES[source], fit.weight_bytes, streamed)
        + f" Run: gesso chat {aliases.ALIAS} (downloads {aliases.SOURCES[source].gigabytes} GB)"
    )


def _sentence(plan: CardPlan, precision: str, size: int, streamed: int) -> str:
    weights, usable = f"{size / 1e9:.1f}", f"{plan.usable_bytes / 1e9:.1f} GB"
    if not streamed:
        return f"Fits {_title(plan.card)}: {precision}, {weights} of {usable}."
    return (
        f"Fits {_title(plan.card)} in part: {precision}, {weights} GB for {usable}; the experts of {streamed} layers "
        "stay in host memory, which is slower."
    )


def _title(card: Card) -> str:
    number = f"{card.memory_gb:g}"
    article = "an" if number.startswith(("8", "11", "18")) else "a"
    return f"{article} {number} GB card"

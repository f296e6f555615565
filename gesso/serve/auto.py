"""Choose precision, context, batch and prefill by the available memory, where the settings leave them open.

If no precision fits on a GPU, the experts of some layers stay in host memory (`gesso/memory/budget.py`).

Rows of the KV cache grow with their texts and keep their size. The worst case is therefore `max_batch` texts of
`max_length` tokens beside the weights. That case must fit, so the cache of a running server never exceeds memory.

The choice is made before the model is loaded, with an upper bound of the workspace. On a GPU the engine then measures
what it really needs, and `remeasure` adapts the context.
"""

from dataclasses import dataclass, replace

from gesso.checkpoint.source import locate
from gesso.errors import InputError
from gesso.memory.budget import CONTEXT, Budget, Placement, budget_of, streaming_cost
from gesso.memory.device import DeviceMemory
from gesso.memory.units import gigabytes
from gesso.serve.settings import EngineSettings

BATCH = 8  # preferred to a longer context
BATCH_GPU = 32  # limit where memory allows it; on a CPU a larger batch gives no more tokens per second


@dataclass(frozen=True)
class EngineChoice:
    settings: EngineSettings  # complete
    placement: Placement
    why: str
    fixed_bytes: int  # weights and workspace: all memory but the KV cache
    budget_bytes: int  # limit for weights, workspace and KV cache
    fit: Budget
    has_open_context: bool  # whether the settings left the context open


def choose(settings: EngineSettings, memory: DeviceMemory, value_bytes: int) -> EngineChoice:
    """Complete the settings, or raise an InputError with the figures if the model cannot fit.

    `value_bytes` is the size of a number in the dtype of the computation.
    """
    source = locate(settings.model)
    config = source.config
    fit = budget_of(source, memory, settings.memory, value_bytes, settings.prefill, settings.text_only)
    allowed = [settings.quantize] if settings.quantize else fit.precisions()
    wanted = min(settings.max_length or CONTEXT, config.max_position_embeddings)
    batch = settings.max_batch or 1
    placement = fit.place(allowed, wanted, batch, shorter=settings.max_length is None)
    if placement is None:
        raise InputError(_rejection(fit, allowed[-1], wanted, batch, settings))
    quantize, layers = placement.quantize, placement.layers
    context = settings.max_length or max(
        fit.context(quantize, settings.max_batch or BATCH, layers),
        min(wanted, fit.context(quantize, batch, layers)),  # a smaller batch before a context shorter than CONTEXT
    )
    context = min(context, config.max_position_embeddings)
    most = BATCH_GPU if memory.device == "cuda" else BATCH
    chosen = replace(
        settings,
        quantize=None if quantize == "none" else quantize,
        max_length=context,
        max_batch=settings.max_batch or min(most, fit.sequences(quantize, context, layers)),
        prefill=fit.prefill,
    )
    assert chosen.max_batch is not None
    fixed = fit.weights(quantize, layers) + fit.workspace(chosen.max_batch)
    why = _reason(fit, memory, settings, chosen, placement)
    return EngineChoice(chosen, placement, why, fixed, fit.size, fit, settings.max_length is None)


def remeasure(choice: EngineChoice, fixed_bytes: int) -> EngineChoice:
    """Return the choice for a measured size of weights and workspace, with the longest context that fits beside it.

    A context from the settings is kept. If `max_batch` such texts do not fit, the last of them will fail.
    """
    fit, batch, context = choice.fit, choice.settings.max_batch, choice.settings.max_length
    assert batch is not None and context is not None
    if choice.has_open_context:
        context = fit.longest((choice.budget_bytes - fixed_bytes) // batch)
    if context < fit.config.canvas_length:
        raise InputError(
            f"the model does not fit: weights and workspace take {gigabytes(fixed_bytes)}, and "
            f"{gigabytes(choice.budget_bytes)} may be used; try a smaller --max-batch, a narrower --quantize or a "
            "larger --memory"
        )
    why = f"{choice.why}; measured: weights and workspace {gigabytes(fixed_bytes)}, context {context}"
    return replace(choice, settings=replace(choice.settings, max_length=context), why=why, fixed_bytes=fixed_bytes)


def _reason(
    fit: Budget, memory: DeviceMemory, given: EngineSettings, chosen: EngineSettings, placement: Placement
) -> str:
    assert chosen.max_length is not None and chosen.max_batch is not None

    def source(value: object) -> str:
        return "as requested" if value else "largest that fits"

    longest = fit.config.max_position_embeddings
    context = "the checkpoint's maximum" if chosen.max_length == longest else source(given.max_length)
    why = "as requested" if given.quantize else "narrowest" if placement.layers else "widest that fits"
    quantized = f", quantized to {chosen.quantize} ({why})" if chosen.quantize else ""
    streamed = f"; {streaming_cost(placement, len(fit.config.layers))}" if placement.layers else ""
    return (
        f"{gigabytes(memory.free)} of {gigabytes(memory.total)} are free on the {memory.device}, "
        f"{gigabytes(fit.size)} may be used; "
        f"weights {gigabytes(fit.weights(placement.quantize, placement.layers))}{quantized}, "
        f"workspace {gigabytes(fit.workspace(chosen.max_batch))}{streamed}; "
        f"context {chosen.max_length} ({context}), at most {gigabytes(fit.sequence(chosen.max_length))} per text; "
        f"batch {chosen.max_batch} ({source(given.max_batch)}); "
        f"prefill {chosen.prefill} tokens per step ({'as requested' if given.prefill else 'default of the device'})"
    )


def _rejection(fit: Budget, quantize: str, context: int, batch: int, settings: EngineSettings) -> str:
    possible = fit.context(quantize, batch)
    advice = (
        f"a context of {possible} would fit (--max-length)"
        if possible
        else "try a smaller --max-batch, a narrower --quantize, a larger --memory or another device"
    )
    return f"the model does not fit: {fit.needed(Placement(quantize), context, batch, settings.memory)}; {advice}"

"""Answers of /v1/decide: one of several choices, and the probability of each."""

from typing import Any

from gesso.engine.decision import probabilities
from gesso.serve.form import DecisionForm
from gesso.serve.generation import Generation
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import head


def answer(model: ServedModel, generation: Generation) -> dict[str, Any]:
    form = generation.form
    assert isinstance(form.details, DecisionForm)
    choices = form.details.choices
    values = probabilities(generation.ended[0].scores)
    index = values.index(max(values))
    return {
        **head("decision", form.model, "decision"),
        "choice": choices[index],
        "index": index,
        "probabilities": [{"choice": c, "probability": p} for c, p in zip(choices, values, strict=True)],
        "usage": generation.usage(),
    }

"""Ask a model to copy values into an answer, with and without the `format` of the field.

    python -m benchmarks.format_values
    python -m benchmarks.format_values --format uri --format email

A format must not change a valid value. Each value is asked for three times: without the format; with the format in the
constraint alone, so that the prompt is the same; and with the format in the prompt, too, as requests are by default.
The prompt alone may change what a small model copies. The first comparison shows what the constraint changes.
"""

import argparse
import json
from collections.abc import Sequence

import gesso
from gesso.chat.messages import with_schema
from gesso.errors import GessoError
from tests.constraints.format_values import VALUES

NEW_TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=VALUES, action="append", help="only this format; may be repeated")
    formats: Sequence[str] = parser.parse_args().format or tuple(VALUES)
    model = gesso.load()
    copied, equal, equal_with_prompt, values = 0, 0, 0, 0
    for name in formats:
        for value in VALUES[name]:
            plain, constrained, by_default = _answers(model, name, value)
            values += 1
            copied += plain == value
            equal += constrained == plain
            equal_with_prompt += by_default == plain
            print(name, repr(value), repr(plain), repr(constrained), repr(by_default), sep="\t", flush=True)
    print(f"{values} values, {copied} copied without the format")
    print(f"same answer with the format in the constraint: {equal}; in the prompt, too: {equal_with_prompt}")


def _answers(model: gesso.Gesso, name: str, value: str) -> tuple[str, str, str]:
    """Return the value in three answers: without the format, with it in the constraint, and in the prompt, too."""
    messages = [{"role": "user", "content": f"Save an entry named Ada with value {value}"}]
    plain, formatted = _schema(None), _schema(name)
    same_prompt = with_schema(messages, plain)
    return (
        _answer(model, messages, plain, schema_in_prompt=True),
        _answer(model, same_prompt, formatted, schema_in_prompt=False),
        _answer(model, messages, formatted, schema_in_prompt=True),
    )


def _schema(name: str | None) -> dict[str, object]:
    value = {"type": "string"} if name is None else {"type": "string", "format": name}
    return {
        "type": "object",
        "properties": {"name": {"type": "string"}, "value": value},
        "required": ["name", "value"],
    }


def _answer(
    model: gesso.Gesso, messages: list[dict[str, str]], schema: dict[str, object], *, schema_in_prompt: bool
) -> str:
    try:
        result = model.chat(
            messages, json_schema=schema, schema_in_prompt=schema_in_prompt, seed=1, max_new_tokens=NEW_TOKENS
        )
    except GessoError as error:
        return f"{type(error).__name__}: {error}"
    return str(json.loads(result.text)["value"])


if __name__ == "__main__":
    main()

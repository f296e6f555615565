"""Errors of pydantic in the form that clients expect. Apart from other errors: the engine loads no pydantic."""

from pydantic import ValidationError

from gesso.serve.errors import ApiError
from gesso.settings import unknown_settings


def from_validation(error: ValidationError) -> ApiError:
    """Report the first problem that pydantic found, by the name of the field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # pydantic puts the branches of a union into the path (`stop`, `list[str]`); they are not fields.
    path = [str(part) for part in first["loc"]]
    name = ".".join(part for part in path if part.isidentifier() or part.isdecimal()) or None
    if first["type"] == "diffusion_setting":
        # The message names the setting, as in Python.
        return ApiError(400, first["msg"], param=name, code="invalid_value")
    if first["type"] == "extra_forbidden" and path[:-1] == ["diffusion"]:
        message = unknown_settings([path[-1][:80]], also=("preset", "pins", "drafts"))
        return ApiError(400, message, param=name, code="unknown_parameter")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{name} is not a supported field; leave it out", param=name, code="unknown_parameter")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(
        400, f"{name}: {message}" if name else f"the body: {message}", param=name, code=_code(first["type"])
    )


def _code(kind: str) -> str:
    """Return OpenAI's code for one of pydantic's types of errors."""
    if kind == "missing":
        return "missing_required_parameter"
    return "invalid_type" if kind.endswith("_type") else "invalid_value"

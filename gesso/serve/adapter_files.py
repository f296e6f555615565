"""Requests to load and unload adapters: their fields, and the directories that they may name.

Imports no torch: the server process checks requests that another process runs.
"""

from pathlib import Path

from pydantic import Field, field_validator

from gesso.checks import check_adapter_name
from gesso.errors import InputError
from gesso.serve.errors import ApiError
from gesso.serve.fields import Fields

FILES = ("adapter_config.json", "adapter_model.safetensors")  # all that is read of an adapter's directory


class UnloadAdapterFields(Fields):
    """The fields of vLLM's request to unload an adapter."""

    lora_name: str = Field(max_length=100, description="Name of the adapter, and of the model in requests.")

    @field_validator("lora_name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        try:
            check_adapter_name(name)
        except InputError as error:
            raise ValueError(str(error)) from None
        return name


class LoadAdapterFields(UnloadAdapterFields):
    """The fields of vLLM's request to load an adapter."""

    lora_path: str = Field(
        min_length=1, max_length=4096, description="Its directory, inside the server's --adapter-dir."
    )


def find_adapter(root: str, given: str) -> str:
    """Return the directory of an adapter, absolute or relative to `root`, with all links resolved.

    The directory and its files must be inside `root`. All other paths get the same error, whether they exist or not, so
    that clients learn nothing about other files.
    """
    try:
        base = Path(root).resolve(strict=True)
        directory = (base / given).resolve(strict=True)
        files = [(directory / name).resolve(strict=True) for name in FILES]
        if all(path.is_relative_to(base) for path in (directory, *files)):
            return str(directory)
    except (OSError, ValueError, RuntimeError):  # missing, not a possible path, or links in a circle
        pass
    raise ApiError(
        404,
        f"there is no adapter {given[:100]!r} in this server's directory of adapters; an adapter is a directory with "
        f"{' and '.join(FILES)}",
        param="lora_path",
        code="adapter_not_found",
    )

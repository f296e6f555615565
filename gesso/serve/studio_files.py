"""The files of the studio, and the headers they are sent with."""

import json
from importlib import resources
from pathlib import Path

from gesso.settings import OPTIONS

# The page loads nothing from other hosts and never inserts text as markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the page and its modules must be of the same version
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def files() -> dict[str, bytes]:
    """Return all files of the studio by name, with the module generated from the settings schema."""
    folder = resources.files("gesso.serve").joinpath("studio")
    held = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return {**held, "schema.js": schema_module()}


def schema_module() -> bytes:
    """Return a JavaScript module with all diffusion settings, from which settings.js makes its controls."""
    settings = [{"name": one.name, "basic": one.basic, **one.json_schema()} for one in OPTIONS.values()]
    return f"export const SETTINGS = {json.dumps(settings, indent=2)};\n".encode()


def content_type(name: str) -> str:
    return TYPES.get(Path(name).suffix, "application/octet-stream")

"""The studio's files, and under which rules a browser gets them: nothing from elsewhere, and no text as markup."""

from importlib import resources
from pathlib import Path

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the page and its modules are of one version
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def files() -> dict[str, bytes]:
    """All files of the studio, by name."""
    folder = resources.files("gesso.serve").joinpath("studio")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def content_type(name: str) -> str:
    return TYPES.get(Path(name).suffix, "application/octet-stream")

"""`gesso infill` and `gesso edit`: rewrite parts of a file.

The other parts keep every byte.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gesso.cli.options import Candidates, GenerationOptions, LoadOptions, with_options
from gesso.cli.terminal import note, print_as_is, print_json, print_text, whole_stdin
from gesso.errors import InputError
from gesso.files import read_bytes, read_text, replacing

if TYPE_CHECKING:
    from gesso.engine.events import Result

MARKER = "<FILL>"

Source = Annotated[str, typer.Argument(metavar="FILE", help="UTF-8 text file; - for stdin.")]
Method = Annotated[
    str,
    typer.Option(
        metavar="auto|prompt|pinned",
        help="Show the text after a hole in the prompt, or pin it in the canvas and search the length of the hole.",
    ),
]
Context = Annotated[
    int | None, typer.Option(min=1, help="Show the model only this many tokens on each side. Default: all.")
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Replace the file instead of printing its text.")]
Json = Annotated[bool, typer.Option("--json", help="Print the full result as one JSON object.")]


@with_options
def infill(
    file: Source,
    marker: Annotated[str, typer.Option(help="Text that marks a hole in the file.")] = MARKER,
    middle: Annotated[bool, typer.Option("--middle", help="Print only the new text of each hole.")] = False,
    in_place: InPlace = False,
    method: Method = "auto",
    context: Context = None,
    candidates: Candidates = 1,
    json: Json = False,
    *,
    loading: LoadOptions,
    options: GenerationOptions,
) -> None:
    """Fill the holes of a text, from left to right."""
    if not marker:
        raise InputError("--marker is empty; give the text that marks a hole")
    text = _read(file, in_place)
    parts = text.split(marker)
    if len(parts) == 1:
        raise InputError(
            f"{_name(file)} has no hole; write {marker} where text is missing, or give its marker with --marker"
        )
    keywords = {"method": method, "context": context, "candidates": candidates, **options.keywords()}
    result = loading.load().infill_holes(parts, **keywords)
    failure = _replace(file, text, result.text) if in_place else None
    if json:
        print_json({"text": result.text, "middles": [asdict(filled) for filled in result.middles]})
    elif middle and not failure:
        for filled in result.middles:
            print_text(filled.text)
    elif not in_place or failure:
        print_as_is(result.text)
    if not json:
        for filled in result.middles:
            _note(filled, filled.method)
    if failure:
        raise InputError(failure)


@with_options
def edit(
    file: Source,
    span: Annotated[str, typer.Option(metavar="START:END", help="Characters to replace, counted from 0.")],
    level: Annotated[
        float,
        typer.Option(help="Share of the tokens to replace, above 0 and at most 1; 1 ignores the present text."),
    ] = 1.0,
    instruction: Annotated[str | None, typer.Option(help="Description of the change.")] = None,
    in_place: InPlace = False,
    method: Method = "auto",
    context: Context = None,
    json: Json = False,
    *,
    loading: LoadOptions,
    options: GenerationOptions,
) -> None:
    """Replace a span of a text and keep the rest."""
    from gesso.infill.span import check_span

    text = _read(file, in_place)
    where = check_span(text, _span(span), level)  # before a large model is loaded
    keywords = {"method": method, "context": context, **options.keywords()}
    edit = loading.load().edit(text, where, level=level, instruction=instruction, **keywords)
    failure = _replace(file, text, edit.text) if in_place else None
    if json:
        print_json(asdict(edit))
    else:
        if not in_place or failure:
            print_as_is(edit.text)
        _note(edit, edit.method)
    if failure:
        raise InputError(failure)


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch("([0-9]{1,18}):([0-9]{1,18})", text)
    if not match:
        raise InputError(f"--span must be START:END in characters, such as 12:40; got {text!r}")
    return int(match[1]), int(match[2])


def _note(result: "Result", method: str) -> None:
    usage = result.usage
    note(
        f"{method}: {usage.completion_tokens} tokens, {usage.denoising_steps} steps, canvases {usage.canvases}, "
        f"finish {result.finish_reason}, seed {result.seed}"
    )


# --- files ----------------------------------------------------------------------------------------------------------


def _name(file: str) -> str:
    return "stdin" if file == "-" else file


def _read(file: str, in_place: bool) -> str:
    if file == "-":
        if in_place:
            raise InputError("--in-place needs a file to write to; stdin has none")
        return whole_stdin()
    return read_text(Path(file))


def _replace(file: str, before: str, after: str) -> str | None:
    """Replace the text of a file, unless the file has changed since it was read. If that fails, return the reason.

    The file is replaced atomically. A symbolic link stays a link.
    """
    path = Path(file).resolve()

    def check_unchanged() -> None:
        if read_bytes(path) != before.encode("utf-8"):
            raise InputError(f"{file} changed while the model was writing; it was not replaced")

    try:
        with replacing(path, check=check_unchanged) as new:
            new.write(after.encode("utf-8"))
    except InputError as error:
        return f"{error}; the result is on stdout"
    except OSError as error:
        return f"{file} cannot be written: {error.strerror}; the result is on stdout"
    return None

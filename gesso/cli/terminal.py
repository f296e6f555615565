"""Between the command line and the terminal: the two output streams, the lines coming in, the live canvas.

Answers go to stdout as they are, or without their traps where that is a terminal; all else goes to stderr.
"""

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from gesso.errors import InputError
from gesso.printable import printable

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.engine.events import Draft, Event, Result

PROMPT = "> "
SPECIAL = "·"  # a token that writes nothing: end of text, padding, tags


# --- out ------------------------------------------------------------------------------------------------------------


class _Complaints(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def prepare() -> None:
    """Library warnings to stderr; a question mark for what the encoding lacks; a closed stream is an empty one."""
    logger = logging.getLogger("gesso")
    logger.handlers, logger.propagate = [_Complaints()], False
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    # Strict on the way in: some locales have Python smuggle bad bytes into the text as half surrogates.
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def console(stream: TextIO) -> Console:
    """Styled and wrapped on a terminal, plain elsewhere, whatever FORCE_COLOR says."""
    terminal = stream.isatty()
    return Console(file=stream, force_terminal=terminal, soft_wrap=not terminal, highlight=False, markup=False)


def _write(text: str) -> None:
    """To stdout. When nobody reads it any more (`| head -1`), that is the end, and a quiet one."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What could not be written is still in the buffer, and Python would try again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(0) from None
        raise


def print_text(text: str) -> None:
    _write((printable(text) if sys.stdout.isatty() else text) + "\n")


def print_as_is(text: str) -> None:
    """A file's text, to the byte; only a terminal gets the line break that its last line lacks."""
    if not sys.stdout.isatty():
        _write(text)
    elif text:
        print_text(text.removesuffix("\n"))


def print_json(value: Any) -> None:
    _write(json.dumps(value) + "\n")


def print_styled(render: Callable[[Console], None]) -> None:
    screen = console(sys.stdout)
    with screen.capture() as rendered:
        render(screen)
    _write(rendered.get())


def note(text: str) -> None:
    console(sys.stderr).print(Text(printable(text), style="dim"))


def complain(message: str) -> None:
    console(sys.stderr).print(Text("gesso: " + printable(message.removeprefix("gesso: "))))


def show_cursor() -> None:
    """Ctrl-C may come at a moment when rich has hidden the cursor and not yet taken charge of showing it again."""
    console(sys.stderr).show_cursor()
    console(sys.stderr).print()


# --- in -------------------------------------------------------------------------------------------------------------


def lines(interactive: bool) -> Iterator[str]:
    """Lines of stdin without their ends; from a keyboard with a prompt, history and editing, until Ctrl-D."""
    try:
        yield from _typed() if interactive else (line.removesuffix("\n") for line in sys.stdin)
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not {error.encoding} text: {error.reason} at byte {error.start}") from None


def whole_stdin() -> str:
    """All of stdin, its line ends as they are."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", newline="")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not {error.encoding} text: {error.reason} at byte {error.start}") from None


def _typed() -> Iterator[str]:
    import readline  # noqa: F401 (once imported, input() uses it)

    while True:
        # input() prompts on stdout, where only answers belong unless it is the same terminal.
        if not sys.stdout.isatty():
            console(sys.stderr).print(PROMPT, end="")
        try:
            yield input(PROMPT if sys.stdout.isatty() else "")
        except EOFError:
            note("")
            return


# --- the live view --------------------------------------------------------------------------------------------------


def follow(model: "Gesso", events: "Iterator[Event]", watch: bool) -> "Result":
    """A stream to its end, watched if that is wanted and there is a terminal."""
    drawable = sys.stderr.isatty() and not console(sys.stderr).is_dumb_terminal
    view = CanvasView(model) if watch and drawable else None
    with view or nullcontext():
        for event in events:
            if event.kind == "done":
                return event.result
            if view and event.kind == "draft":
                view.show(event)
    raise AssertionError("a stream ends with its done event")


class CanvasView:
    """The text so far and the canvas on stderr, drawn anew at every step; gone when the `with` block ends.

    Committed text is plain, settled tokens are bold, those that may still change are dim.
    """

    def __init__(self, model: "Gesso") -> None:
        self.model, self.steps_taken = model, 0
        # One refresh a step: no thread, so nothing is drawn while the terminal belongs to someone else.
        self.live = Live(_Frame(Text(), "reading the prompt"), console=Console(stderr=True), transient=True,
                         auto_refresh=False)  # fmt: skip

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(kind, error, trace)

    def show(self, draft: "Draft") -> None:
        self.steps_taken += 1
        settled, entropy = sum(draft.settled), draft.entropy
        status = (
            f"canvas {draft.canvas.index + 1} · step {draft.canvas.step}/{draft.steps} · "
            f"{settled}/{len(entropy)} settled · entropy {sum(entropy) / len(entropy):.3f} · "
            f"{(len(draft.before) + settled) / self.steps_taken:.1f} tokens/step"
        )
        self.live.update(_Frame(self._text(draft), status), refresh=True)

    def _text(self, draft: "Draft") -> Text:
        special = self.model.tokenizer.special_ids
        text = Text(printable(self.model.decode(draft.before)))
        cells = [
            (token, "dim" if token in special or not settled else "bold", token in special)
            for token, settled in zip(draft.tokens, draft.settled, strict=True)
        ]
        # Decoded by runs, not by token: a character may be spelled in several tokens.
        for (style, is_special), run in groupby(cells, key=lambda cell: cell[1:]):
            tokens = [token for token, *_ in run]
            text.append(SPECIAL * len(tokens) if is_special else printable(self.model.decode(tokens)), style)
        return text


class _Frame:
    """As much of the end of the text as the terminal has room for, and the status below it."""

    def __init__(self, text: Text, status: str) -> None:
        self.text, self.status = text, status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.size.height - 2, 1)  # a line for the status, and one for the cursor when the view closes
        yield from self.text.wrap(console, options.max_width, overflow="fold")[-room:]
        yield Text(self.status, style="cyan", no_wrap=True, overflow="ellipsis")

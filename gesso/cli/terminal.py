"""The command line's terminal: output streams, input lines, the live view of a canvas.

Answers go to stdout, unchanged, or with control characters made visible if stdout is a terminal. Everything else goes
to stderr.
"""

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from gesso.errors import InputError
from gesso.printable import in_options, printable
from gesso.renamed import RenamedWarning

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.engine.events import Draft, Event, Result

PROMPT = "> "
PIPED_WIDTH = 200  # of tables that go to a file or to another program
SPECIAL = "·"  # in place of a token without text: end of text, padding, tags
_show_usual = warnings.showwarning


# --- output ---------------------------------------------------------------------------------------------------------


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show the warning of a former name as a note, without the line of code that Python adds."""
    if issubclass(category, RenamedWarning):
        note(str(message))
    else:
        _show_usual(message, category, filename, lineno, file, line)


class _ErrorLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def prepare() -> None:
    """Send library warnings to stderr, replace characters the encoding lacks, and open closed streams on /dev/null."""
    logger = logging.getLogger("gesso")
    logger.handlers, logger.propagate = [_ErrorLines()], False
    warnings.showwarning = _show_warning
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    # Strict input: in some locales, Python would otherwise turn invalid bytes into lone surrogates.
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def console(stream: TextIO) -> Console:
    """Return a console: styled and wrapped on a terminal, plain and wide elsewhere even with FORCE_COLOR."""
    terminal = stream.isatty()
    width = None if terminal else PIPED_WIDTH
    return Console(
        file=stream, force_terminal=terminal, soft_wrap=not terminal, width=width, highlight=False, markup=False
    )


def _write(text: str) -> None:
    """Write to stdout. Exit quietly if its reader is gone, as in `| head -1`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # The unwritten text is still in the buffer, and Python would write it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(0) from None
        raise


def print_text(text: str) -> None:
    _write((printable(text) if sys.stdout.isatty() else text) + "\n")


def print_as_is(text: str) -> None:
    """Print the text of a file byte by byte; only a terminal gets a line break after an unfinished last line."""
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


def print_report(report: Any, render: Callable[[Console], None], as_json: bool) -> None:
    """Print a dataclass as one JSON object, or as `render` shows it."""
    if as_json:
        print_json(asdict(report))
    else:
        print_styled(render)


def note(text: str) -> None:
    console(sys.stderr).print(Text(printable(text), style="dim"))


def complain(message: str) -> None:
    console(sys.stderr).print(Text("gesso: " + printable(in_options(message.removeprefix("gesso: ")))))


def show_cursor() -> None:
    """Show the cursor again: Ctrl-C may arrive after rich has hidden it and before rich would restore it."""
    console(sys.stderr).show_cursor()
    console(sys.stderr).print()


# --- input ----------------------------------------------------------------------------------------------------------


def lines(interactive: bool) -> Iterator[str]:
    """Yield the lines of stdin without line ends; from a keyboard with prompt, history and editing, until Ctrl-D."""
    try:
        yield from _typed_lines() if interactive else (line.removesuffix("\n") for line in sys.stdin)
    except UnicodeDecodeError as error:
        raise _not_text(error) from None


def whole_stdin() -> str:
    """Return all of stdin with its line ends unchanged."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", newline="")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise _not_text(error) from None


def _not_text(error: UnicodeDecodeError) -> InputError:
    return InputError(f"stdin is not {error.encoding} text: {error.reason} at byte {error.start}")


def _typed_lines() -> Iterator[str]:
    """Yield typed messages until Ctrl-D or a second Ctrl-C. Pasted text is one message, even with several lines."""
    import readline

    if "libedit" not in (readline.__doc__ or ""):  # libedit, of macOS, has no such setting
        readline.parse_and_bind("set enable-bracketed-paste on")
    interrupted = False
    while True:
        # input() writes its prompt to stdout, which is for answers only unless it is the same terminal.
        if not sys.stdout.isatty():
            console(sys.stderr).print(PROMPT, end="")
        try:
            message = input(PROMPT if sys.stdout.isatty() else "")
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            note("\nCtrl-C once more, or Ctrl-D, ends the chat.")
            continue
        interrupted = False
        yield message


# --- live view ------------------------------------------------------------------------------------------------------


def follow(model: "Gesso", events: "Iterator[Event]", watch: bool) -> "Result":
    """Return the result of a stream. With `watch`, show its drafts if stderr is a terminal."""
    drawable = sys.stderr.isatty() and not console(sys.stderr).is_dumb_terminal
    view = CanvasView(model) if watch and drawable else None
    if view:
        model.engine.on_read = view.show_reading
    with view or nullcontext():
        for event in events:
            if event.kind == "done":
                return event.result
            if view and event.kind == "draft":
                view.show(event)
    raise AssertionError("the stream ended without a done event")


class CanvasView:
    """Text and canvas on stderr, redrawn at every denoising step and removed when the `with` block ends.

    Committed text is plain, settled tokens are bold, all others are dim.
    """

    def __init__(self, model: "Gesso") -> None:
        self.model, self.steps_taken = model, 0
        # Refresh once per step and without a thread: nothing is drawn while another program uses the terminal.
        self.live = Live(_Frame(Text(), "reading the prompt"), console=Console(stderr=True), transient=True,
                         auto_refresh=False)  # fmt: skip

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(kind, error, trace)

    def show_reading(self, done: int, total: int) -> None:
        self.live.update(_Frame(Text(), f"reading the prompt: {done:,} of {total:,} tokens"), refresh=True)

    def show(self, draft: "Draft") -> None:
        self.steps_taken += 1
        settled, entropy = sum(draft.stable), draft.entropy
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
            for token, settled in zip(draft.tokens, draft.stable, strict=True)
        ]
        # Decode runs of tokens, because several tokens may spell one character.
        for (style, is_special), run in groupby(cells, key=lambda cell: cell[1:]):
            tokens = [token for token, *_ in run]
            text.append(SPECIAL * len(tokens) if is_special else printable(self.model.decode(tokens)), style)
        return text


class _Frame:
    """The end of the text, as much as the terminal has lines for, and the status below it."""

    def __init__(self, text: Text, status: str) -> None:
        self.text, self.status = text, status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = max(options.size.height - 2, 1)  # one line for the status, one for the cursor after the view closes
        yield from self.text.wrap(console, options.max_width, overflow="fold")[-rows:]
        yield Text(self.status, style="cyan", no_wrap=True, overflow="ellipsis")

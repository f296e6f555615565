"""The progress of long work on stderr: plain lines, a terminal, amounts in bytes, and time left."""

import io
from contextlib import redirect_stderr

import pytest

from gesso.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal, for `redirect_stderr`."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_plain_lines_come_at_most_every_ten_seconds_and_have_the_time_left(capsys, clock):
    with Progress(clock=clock) as shown:
        for done in range(1, 9):
            clock.seconds += 4
            shown.show("items", done, 1200)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["items 3/1,200 · 1:19:48 left", "items 6/1,200 · 1:19:36 left"]


def test_a_line_can_be_printed_at_once_with_a_note(capsys, clock):
    with Progress(clock=clock) as shown:
        shown.show("step", 1, 2, "loss 2.0", now=True)
        shown.show("step", 2, 2, "loss 1.0", now=True)
    assert capsys.readouterr().err.splitlines() == ["step 1/2 · loss 2.0", "step 2/2 · loss 1.0"]


def test_a_terminal_has_a_line_per_stage_that_disappears(clock, terminal):
    with redirect_stderr(terminal), Progress(clock=clock) as shown:
        for stage, done in (("round 1", 5), ("round 1", 10), ("round 2", 3)):
            clock.seconds += 1
            shown.show(stage, done, 10)
    drawn = terminal.getvalue()
    assert "━━━━━━━━━━────────── round 1 5/10" in drawn and "━━━━━━━━━━━━━━━━━━━━ round 1 10/10" in drawn
    assert "round 2 3/10" in drawn and drawn.endswith("\x1b[2K")


def test_the_last_state_stays_on_a_terminal_if_it_is_to_be_kept(clock, terminal):
    with redirect_stderr(terminal), Progress(keep=True, clock=clock) as shown:
        shown.show("step", 1, 3)
        shown.show("step", 3, 3)  # too soon to be drawn
    last = terminal.getvalue().rpartition("step")[2]
    assert last.startswith(" 3/3") and "\x1b[2K" not in last


def test_bytes_are_added_up_and_have_a_rate(capsys, clock):
    with Progress(in_bytes=True, clock=clock) as shown:
        for _ in range(3):
            clock.seconds += 10
            shown.add("weights", 4 * 10**9, 10**9)
    assert capsys.readouterr().err.splitlines() == [
        "weights 1.00/4.00 GB",
        "weights 2.00/4.00 GB · 100 MB/s · 0:20 left",
        "weights 3.00/4.00 GB · 100 MB/s · 0:10 left",
    ]


def test_nothing_is_shown_if_not_visible(clock, terminal):
    with redirect_stderr(terminal), Progress(visible=False, clock=clock) as shown:
        shown.show("items", 1, 2, now=True)
        shown.add("items", 2, 1)
    assert terminal.getvalue() == ""


def test_names_cannot_control_the_terminal(capsys, clock):
    with Progress(clock=clock) as shown:
        shown.show("a\x1b[2Jb", 1, 2, now=True)
    assert "\x1b" not in capsys.readouterr().err


def test_durations():
    assert (duration(59.6), duration(3725)) == ("1:00", "1:02:05")

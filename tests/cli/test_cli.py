"""The command line: streams, exit codes, terminals, Ctrl-C."""

import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import fields
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import gesso
from gesso.cli import terminal
from gesso.cli.main import app
from gesso.cli.options import OWN_OPTION, SettingOptions
from gesso.errors import InputError
from tests.tiny import make
from tests.waiting import PATIENCE

GESSO = [sys.executable, "-m", "gesso"]
SHORT = ["--steps", "2", "--max-new-tokens", "8", "--seed", "3"]
ENDLESS = ["--steps", "1000", "--stopping", "fixed", "--max-new-tokens", "4096"]
ROWS, COLUMNS = 12, 80
SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"

Main = Callable[..., SimpleNamespace]
pytestmark = pytest.mark.usefixtures("environment")


class Terminal:
    """The program on its own terminal; stdout is that terminal or a pipe."""

    def __init__(self, *arguments: str, stdout: int | None = None) -> None:
        self.fd, inside = pty.openpty()
        ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [*GESSO, *arguments], stdin=inside, stderr=inside, stdout=inside if stdout is None else stdout,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored after a shell's "&"
            env=dict(os.environ),  # pytest's readline sets LINES and COLUMNS in the C library's environment
        )  # fmt: skip
        os.close(inside)
        self.raw, self.seen = b"", 0

    @property
    def output(self) -> str:
        return self.raw.decode(errors="replace").replace("\r\n", "\n")

    def read(self, until: str | None = None, timeout: float = PATIENCE) -> None:
        """Read up to the next occurrence of a text, or to the end of the program."""
        deadline = time.monotonic() + timeout
        while until is None or (at := self.raw.find(until.encode(), self.seen)) < 0:
            assert time.monotonic() < deadline, f"waited for {until!r}, got {self.raw[self.seen :]!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.raw += os.read(self.fd, 65536)
                except OSError:  # on Linux, when the other side is closed
                    assert until is None, f"ended before {until!r}: {self.raw!r}"
                    return
        self.seen = at + len(until.encode())

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        self.read()
        os.close(self.fd)
        return self.process.wait(PATIENCE)


def screen(output: str) -> list[str]:
    """Return the lines that a terminal shows after this output; supports the codes of rich's live view."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith(("\x1b", "\r")):
            lines[row] += part
    return lines


# --- without a model ------------------------------------------------------------------------------------------------


def test_help_imports_no_slow_packages() -> None:
    script = (
        "import gesso.__main__, sys\n"
        "from gesso.cli.main import main\n"
        "for arguments in ['--help'], ['generate', '--help'], ['chat', '--help'], ['--version']:\n"
        "    assert main(arguments) == 0\n"
        "assert not {'torch', 'tokenizers', 'jinja2', 'fastapi', 'huggingface_hub'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_version(main: Main) -> None:
    assert main("--version").out == f"gesso {gesso.__version__}\n"


@pytest.mark.parametrize("command", [[], ["generate"], ["chat"], ["info"]])
def test_help_lists_the_exit_codes(main: Main, command: list[str]) -> None:
    done = main(*command, "--help")
    assert done.code == 0
    assert "Exit codes: 0" in done.out and "130" in done.out


@pytest.mark.parametrize("command", ["generate", "chat", "infill", "edit", "sudoku", "eval"])
def test_help_names_the_frequent_settings_and_the_option_for_all_others(main: Main, command: str) -> None:
    text = main(command, "--help").out
    for name in (*OWN_OPTION, "set"):
        assert f"--{name} " in text
    assert "--entropy-bound" not in text


def test_settings_lists_every_setting_with_the_option_that_takes_it(main: Main) -> None:
    listed = main("settings").out
    for item in fields(gesso.Diffusion):
        option = f"--{item.name}" if item.name in OWN_OPTION else f"--set {item.name}"
        assert f"{option}=" in listed
    assert "--set eos_settles=false\n" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert json.loads(main("settings", "top_k", "--json").out)[0]["bounds"] == [0, 1_000_000]


def test_help_of_every_command_fits_80_columns(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert max(map(len, main(name, "--help").out.splitlines())) <= 80
    assert len(main("chat", "--help").out.splitlines()) <= 80  # two screens of 40 lines


def test_without_a_command_the_program_prints_its_help(main: Main) -> None:
    done = main()
    assert (done.code, done.err) == (0, "")
    assert done.out == main("--help").out
    assert [line for line in done.out.splitlines() if line in ("Use:", "Train:", "Measure:", "Models:")] == [
        "Use:", "Train:", "Measure:", "Models:",
    ]  # fmt: skip


def test_set_gives_settings_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    given = SettingOptions(set_values=["top-k=20", "eos_settles=true", "t_max=0.5", "top_k=30"], steps=8)
    assert given.diffusion() == {"steps": 8, "top_k": 30, "eos_settles": True, "t_max": 0.5}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("top_k", "--set must be NAME=VALUE"),
        ("top_kk=3", "is top_k meant?"),
        ("steps=8", "give --steps 8"),
        ("top_k=many", "diffusion setting top_k must be an integer"),
        ("eos_settles=7", "eos_settles must be true or false"),
        ("slide=1", "slide was removed"),
    ],
)
def test_a_bad_setting_is_rejected_with_its_name(pair: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        SettingOptions(set_values=[pair]).diffusion()


def test_former_options_still_set_and_name_their_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    assert SettingOptions(entropy_bound=0.2, set_values=["entropy_bound=0.3"]).diffusion() == {"entropy_bound": 0.3}
    assert "give --set entropy_bound=0.2" in capsys.readouterr().err


def test_options_not_given_override_nothing() -> None:
    assert SettingOptions().diffusion() == {}
    given = {"preset": "fast", "eos_settles": False, "t_min": 0.1}
    assert SettingOptions(**given).diffusion() == given


@pytest.mark.parametrize(
    "arguments",
    [
        ["paint"],
        ["generate", "hi", "--no-such-option"],
        ["generate", "hi", "--steps", "many"],
        ["generate", "hi", "--steps", "0"],
        ["generate", "hi", "--set", "entropy_bound=-1"],
        ["generate", "hi", "--sampler", "best"],
        ["generate", "hi", "--preset", "best"],
        ["generate", "hi", "--seed", "-1"],
        ["generate", ""],
        ["generate"],
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2_before_loading(
    main: Main, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("GESSO_MODEL", "/nowhere")  # loading it would be exit code 1
    done = main(*arguments)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"gesso: .+\n", done.err)


def test_stdin_that_is_not_text_is_bad_input(main: Main) -> None:
    done = main("generate", stdin=io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"gesso: stdin is not utf-8 text.*\n", done.err)


@pytest.mark.parametrize("command", [["info"], ["generate", "hi", "--model"], ["chat", "--model"]])
def test_unreadable_checkpoint_is_exit_code_1(main: Main, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    for path in (tmp_path, tmp_path / "absent"):
        done = main(*command, str(path))
        assert (done.code, done.out) == (1, "")
        assert re.fullmatch(r"gesso: .+\n", done.err)


def test_model_from_the_environment(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GESSO_MODEL", str(tmp_path / "absent"))
    for command in (["info"], ["generate", "hi"], ["chat"]):
        done = main(*command)
        assert done.code == 1 and "absent" in done.err


def test_printable_removes_all_control_characters() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = terminal.printable(everything)
    assert len(shown) == len(everything)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Zl", "Zp")} == {"\n", "\t"}
    assert not {c for c in shown if unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI")}
    plain = "äß 漢字 👩‍👩‍👧\n\tنص"
    assert terminal.printable(plain) == plain


def test_text_is_escaped_on_terminals_but_not_on_pipes() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((io.StringIO(), "a\x1b[31mb\n"), (Screen(), "a␛[31mb\n")):
        with redirect_stdout(stream):
            terminal.print_text("a\x1b[31mb")
        assert stream.getvalue() == expected


# --- generate -------------------------------------------------------------------------------------------------------


def test_stdout_has_only_the_text_and_stderr_no_escape_codes(
    main: Main, tiny: gesso.Gesso, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "model", surprise=1)  # a field that gives a warning
    capsys.readouterr()  # it may have given one already
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = main("generate", "hi", *SHORT, "-m", str(tmp_path / "model"))
    expected = tiny.generate("hi", steps=2, max_new_tokens=8, seed=3)
    assert done.code == 0
    assert done.out == expected.text + "\n"
    assert "\x1b" not in done.err
    *warnings, usage = done.err.splitlines()
    assert len(warnings) == len(set(warnings)) > 0
    assert all(re.match("gesso: (?!gesso: )", line) for line in warnings)
    assert "2 steps" in usage and "seed 3" in usage


def test_same_seed_same_text(main: Main) -> None:
    first, second, other = (main("generate", "hi", *SHORT[:-1], seed).out for seed in ("3", "3", "4"))
    assert first == second != other


def test_json_answer_is_one_object_with_all_fields(main: Main, tiny: gesso.Gesso) -> None:
    done = main("generate", "hi", *SHORT, "--json")
    found = json.loads(done.out)
    expected = tiny.generate("hi", steps=2, max_new_tokens=8, seed=3)
    assert done.out.count("\n") == 1
    assert found["text"] == expected.text and found["tokens"] == list(expected.tokens)
    assert (found["finish_reason"], found["seed"]) == (expected.finish_reason, 3)
    assert found["usage"]["denoising_steps"] == 2
    assert found["usage"]["tokens_per_step"] == expected.usage.tokens_per_step
    assert "steps" not in done.err


@pytest.mark.parametrize("dash", [["-"], []])
def test_prompt_from_stdin_loses_its_last_line_break(main: Main, dash: list[str]) -> None:
    assert main("generate", *dash, *SHORT, stdin="one\ntwo\n").out == main("generate", "one\ntwo", *SHORT).out


def test_options_reach_the_model(main: Main) -> None:
    def usage(*arguments: str) -> Any:
        return json.loads(main("generate", "hi", "--json", *arguments).out)["usage"]

    fixed = ["--max-new-tokens", "8", "--seed", "0", "--stopping", "fixed"]
    assert usage(*fixed, "--preset", "fast")["denoising_steps"] == gesso.PRESETS["fast"].steps
    assert usage(*fixed, "--preset", "fast", "--steps", "3")["denoising_steps"] == 3
    assert usage(*SHORT, "--set", "canvas_length=4")["canvases"] in (1, 2)
    text = main("generate", "hi", *SHORT).out[:-1]
    stopped = json.loads(main("generate", "hi", *SHORT, "--json", "--stop", "no such text", "--stop", text[-1]).out)
    assert (stopped["text"], stopped["finish_reason"]) == (text[: text.index(text[-1])], "stop")


@pytest.mark.parametrize(
    "bad", [["--device", "abacus"], ["--dtype", "int3"], ["--set", "t_max=0.1"], ["--seed", "9" * 30]]
)
def test_input_that_the_model_rejects_is_exit_code_2(main: Main, bad: list[str]) -> None:
    done = main("generate", "hi", *SHORT, *bad)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"(gesso: .+\n)+", done.err)


def test_characters_that_stdout_cannot_write_are_replaced(
    main: Main, tiny: gesso.Gesso, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tiny.generate("hi", steps=2, max_new_tokens=8, seed=3).text
    assert not text.isascii()
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)  # its encoding is fixed when Python starts
        assert main("generate", "hi", *SHORT).code == 0
    assert stdout.buffer.getvalue() == text.encode("ascii", "replace") + b"\n"


def test_full_disk_is_reported_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*GESSO, "--version"], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert done.returncode == 1
    assert re.fullmatch(rb"gesso: .*No space left.*\n", done.stderr)


@pytest.mark.parametrize("command", ["--version", "settings"])
def test_closed_pipe_ends_the_command_quietly(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*GESSO, command], stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


# --- live view ------------------------------------------------------------------------------------------------------


def test_the_live_view_fits_the_terminal_and_leaves_only_the_text(tiny: gesso.Gesso) -> None:
    # 256 tokens of noise take more lines than the terminal has.
    long = ["--steps", "4", "--max-new-tokens", "256", "--seed", "1"]
    terminal = Terminal("generate", "hi", *long, stdout=subprocess.PIPE)
    assert terminal.end() == 0
    assert terminal.process.stdout
    with terminal.process.stdout as stdout:
        written = stdout.read().decode()
    text = tiny.generate("hi", steps=4, max_new_tokens=256, seed=1).text
    assert written == text + "\n"
    for step in range(1, 5):
        assert f"canvas 1 · step {step}/4" in terminal.output
    before, _, view = terminal.output.partition(HIDE)
    assert view.count(HIDE) == 0 and view.count(SHOW) == 1
    lines = screen(view)
    assert 4 < len(lines) <= ROWS
    assert [line for line in lines if line][:-1] == [], "the view is removed, the usage line remains"
    assert "256/256" not in before and "4 steps" in "".join(lines)
    assert not set(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.output)) & {"\x1b", "\x00", "\x07", "\x9b"}


@pytest.mark.parametrize("unwanted", [["--no-live"], ["--json"]])
def test_no_live_view_with_no_live_or_json(main: Main, unwanted: list[str]) -> None:
    assert HIDE in main("generate", "hi", *SHORT, terminals=["stderr"]).err
    done = main("generate", "hi", *SHORT, *unwanted, terminals=["stderr"])
    assert done.code == 0
    assert HIDE not in done.err and "canvas 1 ·" not in done.err


def test_live_view_shows_settled_tokens_bold_and_others_dim() -> None:
    model: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(special_ids={0}), decode=lambda tokens: "".join(map(chr, tokens))
    )
    tokens = [*map(ord, "abcd\x1b"), 0, 0]
    settled = [True, True, False, True, False, True, False]
    draft: Any = SimpleNamespace(before=[ord("x")], tokens=tokens, stable=settled)
    text = terminal.CanvasView(model)._text(draft)
    assert text.plain == "xabcd␛··"
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [
        ("ab", "bold"), ("c", "dim"), ("d", "bold"), ("␛", "dim"), ("··", "dim"),
    ]  # fmt: skip


def test_ctrl_c_is_exit_code_130_and_restores_the_cursor() -> None:
    terminal = Terminal("generate", "hi", *ENDLESS)
    terminal.read(until="step 2/")
    terminal.interrupt()
    assert terminal.end() == 130
    assert terminal.output.rindex(SHOW) > terminal.output.rindex(HIDE)
    assert "Traceback" not in terminal.output

"""Windows, as far as another system can play it: its name, and the modules of Unix that it lacks."""

import sys
import sysconfig

import pytest

from gesso.cli.windows import PAGE
from tests.docs.pages import ROOT

UNIX_ONLY = ("resource", "readline", "fcntl", "termios", "pwd", "gesso.serve.http.connections")


@pytest.mark.parametrize("arguments", [("serve",), ("serve", "--port", "0", "--open"), ("chat",), ("chat", "-p", "Hi")])
def test_serve_and_chat_on_windows_end_with_one_line_that_names_wsl_and_the_page(main, monkeypatch, arguments):
    sysconfig.get_config_vars()  # reads files that are named after the platform
    monkeypatch.setattr(sys, "platform", "win32")  # the suite runs on Linux and macOS
    for name in UNIX_ONLY:
        monkeypatch.setitem(sys.modules, name, None)
    done = main(*arguments)
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert "WSL 2" in line and PAGE in line and f"gesso {arguments[0]} does not run on Windows" in line


@pytest.mark.parametrize("page", ["README.md", PAGE])
def test_the_first_screen_of_a_page_sends_windows_to_wsl(page):
    first_screen = "\n".join((ROOT / page).read_text(encoding="utf-8").splitlines()[:30])
    assert "Windows" in first_screen and "WSL 2" in first_screen

"""Messages for people: safe on a terminal, and in the words of the command line there."""

import pytest

from gesso.printable import in_options


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("it does not fit; device=cpu needs 20 GB of memory", "it does not fit; --device cpu needs 20 GB of memory"),
        ("20.1 GB may be used (memory=0.9).", "20.1 GB may be used (--memory 0.9)."),
        ("give max_batch=4, or quantize=int4-int8.", "give --max-batch 4, or --quantize int4-int8."),
        ("diffusion setting write=tokens", "diffusion setting write=tokens"),
        ("on_memory=3", "on_memory=3"),
    ],
)
def test_arguments_of_python_are_options_on_the_command_line(message: str, shown: str) -> None:
    assert in_options(message) == shown

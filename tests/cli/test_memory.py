"""Out of memory on the command line: one message with figures and a command that fits."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gesso.checkpoint import random_weights
from gesso.cli.memory import advice
from gesso.train import run

Main = Callable[..., SimpleNamespace]
BIG = ["-m", "random:26b-a4b"]
COMMANDS = ["generate", "chat", "infill", "edit", "trace", "eval", "sudoku", "bench", "serve"]


@pytest.fixture
def small_card(host: Callable[[int, int], None]) -> None:
    """A CPU with 26 GB, on which the 26B shape fits only with four bits for most matrices."""
    host(26 * 10**9, 26 * 10**9)


@pytest.fixture
def fail_with(loads: Callable[[Any], None]) -> Callable[[Exception], None]:
    """A function that takes the error with which a model fails when its first event is read."""

    def fail(error: Exception) -> None:
        def stream(*_: Any, **__: Any) -> Iterator[Any]:
            raise error
            yield

        model = SimpleNamespace(stream=stream, events=stream, request=lambda *_, **__: None)
        loads(lambda *_, **__: model)  # the 26B shape, which must not be loaded

    return fail


def test_every_command_that_loads_a_model_has_the_memory_options(main: Main) -> None:
    for command in COMMANDS:
        help = main(command, "--help").out
        for option in ("--device", "--dtype", "--quantize", "--memory"):
            assert option in help, f"{command} {option}"
        assert "auto" in help, command


def test_auto_reports_the_precision_on_stderr(main: Main, tiny_directory: Path) -> None:
    short = ["--max-new-tokens", "4", "--steps", "1", "--seed", "1"]
    done = main("generate", "hi", "-m", str(tiny_directory), "--quantize", "auto", *short)
    plain = main("generate", "hi", "-m", str(tiny_directory), "--quantize", "none", *short)
    assert done.code == 0 and done.out == plain.out
    assert "precision: as stored, chosen by the available memory" in done.err


def test_a_model_that_does_not_fit_is_not_loaded_and_the_advised_command_fits(
    main: Main, small_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loaded(Exception): ...

    def make(*given: Any, on_cpu: bool) -> None:
        raise Loaded(given[3])

    monkeypatch.setattr(random_weights, "make", make)  # 26B parameters
    done = main("generate", "two words", *BIG)
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(
        r"gesso: the model does not fit: weights .* need .* GB, and 23.40 GB may be used .*\n", done.err
    )
    command = shlex.split(done.err.partition("this fits: ")[2])
    assert command == ["gesso", "generate", "--quantize", "int4-int8", "two words", *BIG]
    with pytest.raises(Loaded, match="int4-int8"):
        main(*command[1:])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
def test_running_out_of_memory_while_generating_is_one_message(
    main: Main, small_card: None, fail_with: Callable[[Exception], None], error: Exception
) -> None:
    fail_with(error)
    done = main("generate", "hi", *BIG, "--quantize", "fp8")
    assert (done.code, done.out) == (1, "")
    figures = r"weights quantized to fp8 \(.* GB\), .* need .* GB, and 23.40 GB may be used \(--memory 0.9\)"
    command = "gesso generate --quantize int4-int8 hi -m random:26b-a4b"
    assert re.fullmatch(rf"gesso: out of memory on cpu: {figures}; this fits: {command}\n", done.err), done.err


def test_without_a_narrower_precision_the_advice_is_another_device(
    main: Main, small_card: None, fail_with: Callable[[Exception], None]
) -> None:
    fail_with(torch.OutOfMemoryError("CUDA out of memory."))
    done = main("generate", "hi", *BIG, "--quantize", "int4")
    assert done.code == 1 and "use a shorter text" in done.err and "this fits" not in done.err


def test_other_runtime_errors_are_not_taken_for_a_lack_of_memory(
    main: Main, fail_with: Callable[[Exception], None]
) -> None:
    fail_with(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        main("generate", "hi")


def test_running_out_of_memory_while_training_is_one_message(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")

    monkeypatch.setattr(run, "train", train)  # memory cannot run out on purpose
    done = main("train", str(Path(__file__).parents[2] / "examples/overfit/overfit.toml"))
    assert done.code == 1
    assert done.err == (
        "gesso: out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.; use smaller batches, shorter texts or "
        "another device\n"
    )


def test_the_advised_command_replaces_the_precision() -> None:
    for given in (["--quantize", "fp8"], ["--quantize=fp8"], []):
        assert advice(["chat", *given, "--", "-x"], "int4") == "this fits: gesso chat --quantize int4 -- -x"
    assert advice(["generate", "word " * 100], "int4") == "it fits with --quantize int4"

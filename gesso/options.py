"""The options that commands share, as typer reads them: one name, one meaning, one help text."""

import inspect
import json as json_module  # the name itself is an option's
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gesso
from gesso.box import BASE, SOLVER
from gesso.errors import InputError
from gesso.settings import FIELDS, PRESETS, SAMPLERS, STOPPINGS, Diffusion

if TYPE_CHECKING:
    from gesso.api import Gesso

EXIT_CODES = (
    "Exit codes: 0 all is well; 1 the model or its checkpoint cannot be used; 2 the command or its input cannot be; "
    "130 stopped with Ctrl-C."
)
MODEL_HELP = f"Directory or hub name of a checkpoint, or {SOLVER}; without it, the model in the box, {BASE}."


def diffusion_option(help: str, *, min: int | None = None, names: Sequence[str] = ()) -> Any:
    def known(value: str | None) -> str | None:
        if names and value is not None and value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return typer.Option(
        help=help, min=min, metavar="|".join(names) or None, callback=known, rich_help_panel="Diffusion"
    )


def _constraint(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="What the text must be")


Model = Annotated[str | None, typer.Option("--model", "-m", envvar="GESSO_MODEL", help=MODEL_HELP)]
Adapter = Annotated[str | None, typer.Option(help="Directory of an adapter on top of the model.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; without it, the first GPU or the CPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same text; default: chance.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="The most tokens an answer may have.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Watch the canvas, where stderr is a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object for each answer, on one line.")]
Preset = Annotated[str | None, diffusion_option("Settings to start from.", names=tuple(PRESETS))]
Steps = Annotated[int | None, diffusion_option("The most denoising steps a canvas may take.", min=1)]
EntropyBound = Annotated[float | None, diffusion_option("How much uncertainty a step may accept, in nats.")]
First = Annotated[float | None, diffusion_option("Temperature of the first step.")]
Last = Annotated[float | None, diffusion_option("Temperature of the last step.")]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of generate and chat. None is "not given": the preset decides, or the checkpoint."""

    model: Model = None
    device: Device = None
    dtype: Dtype = None
    max_new_tokens: MaxNewTokens = None
    seed: Seed = None
    stop: Stop = None
    live: Live = True
    json: Json = False

    choice: Annotated[list[str] | None, _constraint("Answer with one of these texts; repeat it for each.")] = None
    regex: Annotated[str | None, _constraint("Answer with a text that matches; Rust's regex syntax.")] = None
    json_schema: Annotated[Path | None, _constraint("Answer with JSON valid under the schema in a file.")] = None
    grammar: Annotated[Path | None, _constraint("Answer with a text of the EBNF grammar in a file.")] = None

    preset: Preset = None
    steps: Steps = None
    entropy_bound: EntropyBound = None
    t_max: First = None
    t_min: Last = None
    stability: Annotated[int | None, diffusion_option("Steps without a change before a canvas is done.", min=0)] = None
    confidence: Annotated[float | None, diffusion_option("Mean entropy below which a canvas is done.")] = None
    greed: Annotated[float | None, diffusion_option("Chance of the likeliest token instead of a draw.")] = None
    sampler: Annotated[str | None, diffusion_option("Which positions take their token.", names=SAMPLERS)] = None
    stopping: Annotated[str | None, diffusion_option("When a canvas is done.", names=STOPPINGS)] = None
    canvas_length: Annotated[int | None, diffusion_option("Tokens of a canvas.", min=1)] = None
    eos_settles: Annotated[bool | None, diffusion_option("Judge a canvas only up to its first end of text.")] = None
    settle: Annotated[int | None, diffusion_option("Steps after which a prefix is final.", min=0)] = None

    def diffusion(self) -> dict[str, Any]:
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def request(self) -> dict[str, Any]:
        """The keyword arguments of `Gesso.stream`."""
        common = {name: getattr(self, name) for name in ("max_new_tokens", "seed", "preset")}
        return {**common, "stop": self.stop or (), **self.constraint(), **self.diffusion()}

    def constraint(self) -> dict[str, Any]:
        given: dict[str, Any] = {"choice": self.choice, "regex": self.regex}
        given["json_schema"] = None if self.json_schema is None else _read_json(self.json_schema)
        given["grammar"] = None if self.grammar is None else _read_text(self.grammar)
        return {name: value for name, value in given.items() if value is not None}

    @property
    def watch(self) -> bool:
        return self.live and not self.json

    def load(self) -> "Gesso":
        # A large model takes minutes to load, so what is wrong by itself is found before. Whether t_max goes with t_min
        # depends on the checkpoint: here their defaults are wide enough for any value.
        replace(Diffusion(t_min=sys.float_info.min, t_max=sys.float_info.max), **self.diffusion())
        return gesso.load(self.model, device=self.device, dtype=self.dtype)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Typer reads options off a signature: there, the fields of `Options` take the place of the parameter `options`."""
    shared = inspect.signature(Options).parameters
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]

    def run(**given: Any) -> None:
        options = Options(**{name: given.pop(name) for name in shared})
        command(**given, options=options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *shared.values()])  # type: ignore[attr-defined]
    return run


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _read_json(path: Path) -> Any:
    text = _read_text(path)
    try:
        return json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None

"""The options that commands share, as typer reads them: one name, one meaning, one help text."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gesso
from gesso.bundled import BASE, SOLVER
from gesso.errors import InputError
from gesso.files import parse_json, read_text
from gesso.settings import BOUNDS, FIELDS, PRESETS, SAMPLERS, STOPPINGS, Diffusion, choose

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
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; without it, the first GPU or the CPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same text; default: chance.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Watch the canvas, where stderr is a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object for each answer, on one line.")]

Candidates = Annotated[
    int, typer.Option(min=1, help="Write so many side by side and keep the one the causal encoder finds likeliest.")
]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Which model, and where it runs."""

    model: Model = None
    adapter: Annotated[str | None, typer.Option(help="Directory of an adapter on top of the model.")] = None
    device: Device = None
    dtype: Dtype = None

    def load(self, default: str | None = None, **engine: Any) -> "Gesso":
        return gesso.load(self.model or default, adapter=self.adapter, device=self.device, dtype=self.dtype, **engine)


@dataclass(frozen=True, kw_only=True)
class Denoising:
    """Every diffusion setting. None is "not given": the preset decides, or the checkpoint."""

    preset: Annotated[str | None, diffusion_option("Settings to start from.", names=tuple(PRESETS))] = None
    steps: Annotated[int | None, diffusion_option("The most denoising steps a canvas may take.", min=1)] = None
    entropy_bound: Annotated[float | None, diffusion_option("How much uncertainty a step may accept, in nats.")] = None
    t_max: Annotated[float | None, diffusion_option("Temperature of the first step.")] = None
    t_min: Annotated[float | None, diffusion_option("Temperature of the last step.")] = None
    stability: Annotated[int | None, diffusion_option("Steps without a change before a canvas is done.", min=0)] = None
    confidence: Annotated[float | None, diffusion_option("Mean entropy below which a canvas is done.")] = None
    greed: Annotated[float | None, diffusion_option("Chance of the likeliest token instead of a draw.")] = None
    sampler: Annotated[str | None, diffusion_option("Which positions take their token.", names=SAMPLERS)] = None
    stopping: Annotated[str | None, diffusion_option("When a canvas is done.", names=STOPPINGS)] = None
    canvas_length: Annotated[int | None, diffusion_option("Tokens of a canvas.", min=1)] = None
    eos_settles: Annotated[bool | None, diffusion_option("Judge a canvas only up to its first end of text.")] = None
    settle: Annotated[int | None, diffusion_option("Steps after which a prefix is final.", min=0)] = None

    def diffusion(self) -> dict[str, Any]:
        """What was given, as keyword arguments; ask before a large model takes minutes to load: it is checked here."""
        given = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        # Whether t_max is compatible with t_min depends on the checkpoint: these defaults fit any value.
        choose(Diffusion(t_min=BOUNDS["t_min"][0], t_max=BOUNDS["t_max"][1]), **given)
        return given if self.preset is None else {**given, "preset": self.preset}


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What is asked for, and how much of it."""

    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens an answer may have.")] = None
    seed: Seed = None
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None

    def asked(self) -> dict[str, Any]:
        return {"max_new_tokens": self.max_new_tokens, "seed": self.seed, "stop": self.stop or ()}


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """What the text must be: one of these at most."""

    choice: Annotated[list[str] | None, _constraint("Answer with one of these texts; repeat it for each.")] = None
    regex: Annotated[str | None, _constraint("Answer with a text that matches; Rust's regex syntax.")] = None
    json_schema: Annotated[Path | None, _constraint("Answer with JSON valid under the schema in a file.")] = None
    grammar: Annotated[Path | None, _constraint("Answer with a text of the EBNF grammar in a file.")] = None

    def constraint(self) -> dict[str, Any]:
        given: dict[str, Any] = {"choice": self.choice, "regex": self.regex}
        given["json_schema"] = None if self.json_schema is None else _read_json(self.json_schema)
        given["grammar"] = None if self.grammar is None else read_text(self.grammar)
        return {name: value for name, value in given.items() if value is not None}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Typer reads options off a signature: there, parameters that are dataclasses of options give way to their fields.

    A field by the name of a parameter of the command's own is left out: the command has its own idea of it.
    """
    parameters = inspect.signature(command).parameters.values()
    own = [p for p in parameters if not is_dataclass(p.annotation)]
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}
    taken = {p.name for p in own}
    fields = {
        name: [p for p in inspect.signature(group).parameters.values() if p.name not in taken]
        for name, group in groups.items()
    }

    def run(**given: Any) -> None:
        options = {name: groups[name](**{p.name: given.pop(p.name) for p in fields[name]}) for name in groups}
        command(**given, **options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    signature = [p.replace(kind=keyword_only) for p in [*own, *(p for group in fields.values() for p in group)]]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    return run


def _read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return parse_json(text, depth=500)
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None

"""The options that several commands share, as typer reads them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

import gesso
from gesso import renamed
from gesso.bundled import BASE, SOLVER
from gesso.checkpoint import aliases
from gesso.choosing import choose_here
from gesso.cli.importing import import_torch
from gesso.cli.memory import ran_out, shortage
from gesso.cli.terminal import note
from gesso.constraints.schema.options import SchemaOptions
from gesso.errors import InputError
from gesso.files import parse_json, read_text
from gesso.memory.device import SHARE
from gesso.own_code import load_own
from gesso.presets import resolved
from gesso.removed import REMOVED
from gesso.settings import OPTIONS, PRESET, SETTINGS, Diffusion, Setting, choose

if TYPE_CHECKING:
    from gesso.api import Gesso

SCHEMA_OPTIONS = tuple(field.name.replace("_", "-") for field in fields(SchemaOptions))
EXIT_CODES = "Exit codes: 0 success; 1 unusable model; 2 unusable command or input; 130 Ctrl-C."
MODEL_HELP = (
    f"Checkpoint directory, Hugging Face name, {aliases.ALIAS} (chosen for the device), {BASE} (default) or {SOLVER}."
)


def setting_option(setting: Setting, hidden: bool = False) -> Any:
    """Return the typer option of a diffusion setting. The schema checks the value, so that its message is shown."""

    def check(value: Any) -> Any:
        if value is None or renamed.is_former(setting.name, value):
            return value
        return value_of(value, setting)

    if setting.kind == "boolean":
        return typer.Option(help=setting.help, callback=check, rich_help_panel="Diffusion", hidden=hidden)
    own = ("FILE.json",) if setting is PRESET else ("MODULE:NAME",) if setting.custom else ()
    choices = (*setting.choices, *own) if setting.choices else ()
    return typer.Option(
        help=setting.help if setting.choices else f"{setting.help} From {setting.range}.",
        parser=setting.parse,
        metavar="|".join(choices) or {"integer": "<int>", "number": "<float>"}[setting.kind],
        callback=check,
        rich_help_panel="Diffusion",
        hidden=hidden,
    )


def value_of(value: Any, setting: Setting) -> Any:
    """Return the checked value of an option for the setting. The name of a rule of the caller's own loads the rule."""
    if setting is PRESET:
        resolved(value)
        return value
    return rule_of(value, setting) if setting.custom else checked(value, setting)


def checked(value: Any, setting: Setting) -> Any:
    setting.check(value)
    return value


def rule_of(name: str, setting: Setting) -> Any:
    """Return the name of a built-in sampler or stopping rule, or the caller's own that `module:name` names.

    That is a function, an object, or a class whose arguments all have defaults.
    """
    if ":" not in name:
        return checked(name, setting)
    rule = load_own(name, f"--{setting.name}", "examples.samplers.rules:Credit")
    if isinstance(rule, type):
        try:
            rule = rule()
        except TypeError as error:
            raise InputError(f"--{setting.name} {name}: {error}; every argument of the class needs a default") from None
    return checked(rule, setting)


def setting_type(setting: Setting) -> Any:
    """Return the type by which typer reads an option: a boolean is a pair of flags, others have their own parser."""
    return bool | None if setting.kind == "boolean" else Any


def _constraint(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Constraints")


Model = Annotated[str | None, typer.Option("--model", "-m", envvar="GESSO_MODEL", show_envvar=False, help=MODEL_HELP)]
ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The model, as for --model. Takes precedence over --model.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1. Default: the first GPU, if any.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16. Default: bfloat16 on a GPU, float32 on a CPU.")
]
Quantize = Annotated[
    str,
    typer.Option(
        metavar="fp8|int4|int4-int8|nvfp4|none|auto",
        help="Quantize the weights while loading; int4-int8 on a CPU only. none: as stored. auto: the widest precision "
        "that fits, or else int4 with experts in host memory.",
    ),
]
Memory = Annotated[
    str,
    typer.Option(metavar="SHARE|SIZE", help="Share of the device's memory that may be used, or a size such as 12GB."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads on a CPU. Default: one per physical core.")]
CacheDir = Annotated[Path | None, typer.Option(help="Keep prompts that a CPU has read in this directory.")]
Decode = Annotated[str | None, typer.Option(hidden=True, help="The former name of --write.")]
TextOnly = Annotated[bool, typer.Option("--text-only", help="Do not load the vision tower; refuse images.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Same seed, same text. Default: random.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Show the canvas on a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per answer, on one line.")]

Candidates = Annotated[
    int, typer.Option(min=1, help="Write this many in parallel and keep the most likely by the causal encoder.")
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to load, its device and its precision."""

    model: Model = None
    device: Device = None
    dtype: Dtype = None
    quantize: Quantize = "none"
    memory: Memory = str(SHARE)
    threads: Threads = None

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of `gesso.load`."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "quantize": None if self.quantize == "none" else self.quantize,
            "memory": self.memory,
        }

    def chosen(self) -> Self:
        """Return these options with the checkpoint that an alias stands for on this device, and print the reason."""
        if not aliases.is_automatic(self.model):
            return self
        choice = choose_here(self.device, self.memory, self.quantize)
        note(choice.reason)
        return replace(self, model=choice.name, quantize=choice.quantize or self.quantize)


@dataclass(frozen=True, kw_only=True)
class LoadOptions(ModelOptions):
    """The model to load with its adapter."""

    adapter: Annotated[str | None, typer.Option(help="Directory of an adapter to apply to the model.")] = None
    cache_dir: CacheDir = None
    text_only: TextOnly = False

    def load(self, default: str | None = None, **engine: Any) -> "Gesso":
        """Load the model. Without `write`, it writes as the checkpoint says, and nothing is measured."""
        import_torch()
        chosen = self.chosen()
        measures = "write" in engine
        engine = {
            "write": "canvas",
            "adapter": self.adapter,
            "threads": self.threads,
            "cache_dir": self.cache_dir,
            "text_only": self.text_only,
            **engine,
        }
        model = gesso.load(chosen.model or default, **chosen.keywords(), **engine)
        if not measures:
            model.writing = replace(model.writing, write=model.defaults.diffusion.write)
        if chosen.quantize == "auto":
            note(f"precision: {model.config.quantization or 'as stored'}, chosen by the available memory")
        return model


OWN_OPTION = ("preset", "write", "steps", "sampler", "stopping")  # all other settings are given with --set
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another diffusion setting, such as top_k=20; may be repeated. gesso settings lists them.",
        rich_help_panel="Diffusion",
    ),
]

_SettingOptions = make_dataclass(
    "_SettingOptions",
    [
        (name, Annotated[setting_type(declared), setting_option(declared, hidden=name not in OWN_OPTION)], None)
        for name, declared in sorted(OPTIONS.items(), key=lambda item: item[0] not in OWN_OPTION)
    ],
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class SettingOptions(_SettingOptions):  # type: ignore[valid-type, misc]
    """All diffusion settings. None: not given, so the preset or the checkpoint decides.

    Settings without an option of their own are fields for one more release: their former options, hidden.
    """

    set_values: SetValues = None

    def diffusion(self) -> dict[str, Any]:
        """Return the given settings as keyword arguments. Invalid combinations are rejected before a model loads."""
        given = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        for name in given.keys() - {*OWN_OPTION}:
            note(f"--{name.replace('_', '-')} will be removed; give --set {name}={as_text(given[name])}")
        given = renamed.translated(given | settings_given(self.set_values or ()))
        settings = {name: value for name, value in given.items() if name in SETTINGS}
        # Whether one temperature suits the other depends on the checkpoint: as the default of both, it always does.
        temperature = settings.get("t_min", settings.get("t_max", 1.0))
        choose(Diffusion(t_min=temperature, t_max=temperature), **settings)
        return given


def settings_given(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the settings that --set NAME=VALUE names, checked. A setting given twice has its last value."""
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        name = key.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--set must be NAME=VALUE, such as top_k=20; got {pair!r}")
        if name in OWN_OPTION:
            raise InputError(f"--set {name}: give --{name} {text or 'VALUE'}")
        if name not in SETTINGS:
            close = get_close_matches(name, SETTINGS, 1)
            meant = f"is {close[0]} meant?" if close else "gesso settings lists them"
            raise InputError(REMOVED.get(name, f"--set: there is no diffusion setting {name!r}; {meant}"))
        values[name] = value_of(_parsed(text.strip(), SETTINGS[name]), SETTINGS[name])
    return values


def _parsed(text: str, setting: Setting) -> Any:
    if setting.kind == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    return setting.parse(text)


def as_text(value: Any) -> str:
    """Return a value of a setting as --set takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(SettingOptions):
    """The options of one answer: length, seed, stop strings, constraint and diffusion settings."""

    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens per answer.")] = None
    seed: Seed = None
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, help="0 is greedy, above 1 is more random.", rich_help_panel="Diffusion"),
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None
    choice: Annotated[list[str] | None, _constraint("Answer with one of these texts; may be repeated.")] = None
    regex: Annotated[str | None, _constraint("Answer with a match, in Rust's regex syntax.")] = None
    json_schema: Annotated[Path | None, _constraint("Answer with JSON valid under this file's schema.")] = None
    schema_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(SCHEMA_OPTIONS),
            help="With --json-schema, allow more texts: members in any order, any whitespace between tokens, or "
            "everything that the schema does not forbid. May be repeated.",
            rich_help_panel="Constraints",
        ),
    ] = None
    grammar: Annotated[Path | None, _constraint("Answer with a text of this file's EBNF grammar.")] = None

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments for the methods of `gesso.Gesso`."""
        given = {
            "choice": self.choice,
            "regex": self.regex,
            "json_schema": None if self.json_schema is None else read_json(self.json_schema),
            "schema_options": self._schema_options(),
            "grammar": None if self.grammar is None else read_text(self.grammar),
        }
        return {
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "stop": self.stop or (),
            **{name: value for name, value in given.items() if value is not None},
            **self.diffusion(),
        }

    def _schema_options(self) -> SchemaOptions | None:
        if not self.schema_option:
            return None
        if self.json_schema is None:
            raise InputError("--schema-option needs --json-schema")
        if unknown := set(self.schema_option) - set(SCHEMA_OPTIONS):
            raise InputError(f"--schema-option must be one of {', '.join(SCHEMA_OPTIONS)}, got {min(unknown)!r}")
        return SchemaOptions(**{name.replace("-", "_"): True for name in self.schema_option})


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a signature that typer reads: each dataclass of options is replaced by its fields.

    A parameter of the command hides a field of the same name.
    """
    parameters = inspect.signature(command).parameters.values()
    plain = [p for p in parameters if not is_dataclass(p.annotation)]
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}
    hidden = {p.name for p in plain}
    fields = {
        name: [p for p in inspect.signature(group).parameters.values() if p.name not in hidden]
        for name, group in groups.items()
    }

    def run(**given: Any) -> None:
        options = {name: groups[name](**{p.name: given.pop(p.name) for p in fields[name]}) for name in groups}
        try:
            command(**given, **options)
        except (RuntimeError, MemoryError) as error:
            loading = next((group for group in options.values() if isinstance(group, ModelOptions)), None)
            if loading is None or not ran_out(error):
                raise
            model = given.get("model_argument") or given.get("model") or loading.model
            raise shortage(model, **loading.keywords()) from None

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    signature = [p.replace(kind=keyword_only) for p in [*plain, *(p for group in fields.values() for p in group)]]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    return run


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return parse_json(text, depth=500)
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None

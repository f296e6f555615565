"""The command line. Answers go to stdout, all else to stderr; torch is not imported before a model is needed."""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gesso
from gesso.errors import GessoError, InputError
from gesso.hardware import CARDS
from gesso.settings import FIELDS, PRESETS, SAMPLERS, STOPPINGS, Diffusion
from gesso.terminal import complain, follow, lines, note, prepare, print_json, print_styled, print_text, show_cursor

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.engine.events import Result
    from gesso.tasks import Task

EXIT_CODES = (
    "Exit codes: 0 all is well; 1 the model or its checkpoint cannot be used; 2 the command or its input cannot be; "
    "130 stopped with Ctrl-C."
)
CHAT_HELP = """\
/reset   forget the conversation, keep the system message
/retry   the last question again, with the next seed
/seed N  draw the answers from this seed
/exit    leave, as Ctrl-D does
A message that begins with a slash: put a space before it. Ctrl-C stops an answer."""
MODEL_HELP = "Directory or hub name of a checkpoint; without it, the model in the box."
SEEDS = 2**64

app = typer.Typer(
    help="DiffusionGemma on your own machine.",
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# --- the options that commands share --------------------------------------------------------------------------------


def _diffusion(help: str, *, min: int | None = None, names: Sequence[str] = ()) -> Any:
    def known(value: str | None) -> str | None:
        if names and value is not None and value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return typer.Option(
        help=help, min=min, metavar="|".join(names) or None, callback=known, rich_help_panel="Diffusion"
    )


Model = Annotated[str | None, typer.Option("--model", "-m", envvar="GESSO_MODEL", help=MODEL_HELP)]
Adapter = Annotated[str | None, typer.Option(help="Directory of an adapter on top of the model.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; without it, the first GPU or the CPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same text; default: chance.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Watch the canvas, where stderr is a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object for each answer, on one line.")]
Preset = Annotated[str | None, _diffusion("Settings to start from.", names=tuple(PRESETS))]
Steps = Annotated[int | None, _diffusion("The most denoising steps a canvas may take.", min=1)]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="sudoku, python_infill or structured.")]
Data = Annotated[list[Path] | None, typer.Option(help="A file of items instead of our own; may be repeated.")]
Clues = Annotated[
    str | None, typer.Option(metavar="LOW-HIGH", help="Clues of a Sudoku of our own, such as 30-36 or 24.")
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of generate and chat. None is "not given": the preset decides, or the checkpoint."""

    model: Model = None
    device: Device = None
    dtype: Dtype = None
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens an answer may have.")] = None
    seed: Seed = None
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None
    live: Live = True
    json: Json = False

    preset: Preset = None
    steps: Steps = None
    entropy_bound: Annotated[float | None, _diffusion("How much uncertainty a step may accept, in nats.")] = None
    t_max: Annotated[float | None, _diffusion("Temperature of the first step.")] = None
    t_min: Annotated[float | None, _diffusion("Temperature of the last step.")] = None
    stability: Annotated[int | None, _diffusion("Steps without a change before a canvas is done.", min=0)] = None
    confidence: Annotated[float | None, _diffusion("Mean entropy below which a canvas is done.")] = None
    sampler: Annotated[str | None, _diffusion("Which positions take their token.", names=SAMPLERS)] = None
    stopping: Annotated[str | None, _diffusion("When a canvas is done.", names=STOPPINGS)] = None
    canvas_length: Annotated[int | None, _diffusion("Tokens of a canvas.", min=1)] = None
    eos_settles: Annotated[bool | None, _diffusion("Judge a canvas only up to its first end of text.")] = None

    def diffusion(self) -> dict[str, Any]:
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def request(self) -> dict[str, Any]:
        """The keyword arguments of `Gesso.stream`."""
        common = {name: getattr(self, name) for name in ("max_new_tokens", "seed", "preset")}
        return {**common, "stop": self.stop or (), **self.diffusion()}

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


# --- commands -------------------------------------------------------------------------------------------------------


@app.command(epilog=EXIT_CODES)
@with_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - or nothing: stdin, less its last line break.")
    ] = None,
    *,
    options: Options,
) -> None:
    """Continue a text."""
    text = _prompt(prompt)
    model = options.load()
    result = follow(model, model.stream(text, **options.request()), options.watch)
    _deliver(result, as_json=options.json)


@app.command(epilog=EXIT_CODES)
@with_options
def chat(
    system: Annotated[str | None, typer.Option(help="What the model should know before the conversation.")] = None,
    thinking: Annotated[bool, typer.Option("--thinking/--no-thinking", help="Let the model think first.")] = False,
    *,
    options: Options,
) -> None:
    """Talk with the model; with piped stdin, every line is a message."""
    interactive = sys.stdin.isatty()
    conversation = Conversation(options.load(), options, thinking, system)
    if interactive:
        note("/help lists the commands, Ctrl-D ends.")
    for line in lines(interactive):
        if line.split() == ["/exit"]:
            return
        try:
            conversation.hear(line)
        except KeyboardInterrupt:
            if not interactive:
                raise
            note("stopped; the conversation is as it was before the question")
        except InputError as error:
            if not interactive:
                raise
            complain(str(error))


@app.command(epilog=EXIT_CODES)
def info(
    model: Annotated[
        str | None,
        typer.Argument(envvar="GESSO_MODEL", help=MODEL_HELP),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="CARD", help=f"And how it would run on a card: {', '.join(CARDS)}.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --gpu: denoising steps a canvas takes; 16 if not given.")
    ] = None,
) -> None:
    """Describe a checkpoint: its size, the memory it needs, what would keep it from loading."""
    from gesso import checkpoint, fit, hardware, untrained
    from gesso.info import describe, render

    card = None if gpu is None else hardware.find(gpu)
    if card is None and steps is not None:
        raise InputError("--steps belongs to --gpu: it is how many denoising steps to reckon with on that card")
    directory = untrained.directory() if model is None else checkpoint.find(model)
    report = describe(directory, model or "the model in the box (untrained)")
    plan = None if card is None else fit.plan(directory, card, steps or fit.STEPS)
    if json:
        print_json(report.to_dict() | ({} if plan is None else {"gpu": plan.to_dict()}))
        return
    print_styled(lambda console: render(report, console))
    if plan is not None:
        print_styled(lambda console: fit.render(plan, console))


@app.command(epilog=EXIT_CODES)
def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML file; see recipes/ and docs/training.md.")],
    check: Annotated[bool, typer.Option("--check", help="Look at the data and train nothing.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Stop after so long; run again, it goes on.")] = None,
    json: Annotated[bool, typer.Option("--json", help="With --check: the report as one JSON object.")] = False,
) -> None:
    """Train or fine-tune a model. Run again, it goes on from its newest checkpoint."""
    from gesso.train import check as checks
    from gesso.train import command
    from gesso.train.recipe import load

    read = load(recipe)
    if not check:
        from gesso.tasks.command import scorer, source

        score = scorer(command.directory_of(read), read.eval) if read.eval else None
        command.train(read, score=score, source=source(read.data), minutes=minutes)
        return
    report = command.check(read)
    if json:
        print_json(report.to_dict())
    else:
        print_styled(lambda console: checks.render(report, console))


@app.command(epilog=EXIT_CODES)
def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Directory or hub name of a checkpoint.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The directory to write; new, or empty.")],
    to: Annotated[str, typer.Option(help="fp8 (half the size), int4 or nvfp4 (a quarter).")],
    json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Write a checkpoint with its matrices in few bits, and report how far they are from the original."""
    from gesso.quantize import command

    report = command.quantize(source, target, to)
    if json:
        print_json(report.to_dict())
    else:
        print_styled(lambda console: command.render(report, console))


@app.command(epilog=f"{EXIT_CODES} A puzzle that was not solved is 1, too.")
def sudoku(
    puzzle: Annotated[
        str,
        typer.Argument(
            metavar="PUZZLE", help="81 digits, 0 or . for an empty cell; a file of such lines; or - for stdin."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", envvar="GESSO_MODEL", help="Directory or hub name of a checkpoint trained on Sudoku."
        ),
    ] = None,
    adapter: Adapter = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = None,
    live: Live = True,
    json: Json = False,
    preset: Preset = None,
    steps: Steps = None,
) -> None:
    """Solve Sudokus out of noise, all cells at once."""
    from gesso.sudoku import read, solve

    puzzles = read(puzzle)
    if model is None:
        raise InputError("the model in the box knows no Sudoku; give a checkpoint that was trained on it with -m")
    solver = gesso.load(model, device=device, dtype=dtype, adapter=adapter)
    limit = {} if steps is None else {"steps": steps}
    solved = 0
    for asked in puzzles:
        attempt = solve(solver, asked, watch=live and not json, seed=seed, preset=preset, **limit)
        solved += attempt.solved
        if json:
            print_json(attempt.to_dict())
            continue
        print_text(attempt.lines() if sys.stdout.isatty() else attempt.answer)
        note(attempt.verdict() if len(puzzles) == 1 else f"{asked.name}: {attempt.verdict()}")
    if len(puzzles) > 1 and not json:
        note(f"{solved} of {len(puzzles)} solved")
    if solved < len(puzzles):
        raise typer.Exit(1)


@app.command("eval", epilog=EXIT_CODES)
def evaluate(
    name: TaskName,
    model: Model = None,
    adapter: Adapter = None,
    device: Device = None,
    count: Annotated[int, typer.Option(min=1, help="How many items.")] = 100,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    data: Data = None,
    clues: Clues = None,
    batch: Annotated[int, typer.Option(min=1, help="Items under way at once; the answers do not depend on it.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the items and of the answers.")] = 0,
    preset: Annotated[str | None, typer.Option(help="Settings to start from.")] = None,
    steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Step limit; several give accuracy against steps.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write accuracy against steps as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything, item by item, as one JSON object.")] = False,
) -> None:
    """Score a model on a task, every figure with its 95 % interval."""
    from gesso.tasks.command import run

    task = _task(name, data, clues)
    found = gesso.load(model, device=device, adapter=adapter, max_batch=batch)
    evaluations = run(found, task, split=split, count=count, seed=seed, preset=preset, steps=steps or [], plot=plot)
    if json:
        print_json([evaluation.to_dict() for evaluation in evaluations])
        return
    for evaluation in evaluations:
        print_text(evaluation.summary())


@app.command("data", epilog=EXIT_CODES)
def training_data(
    name: TaskName,
    count: Annotated[int, typer.Option(min=1, help="How many rows.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same rows.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A file: .jsonl, .jsonl.gz, .jsonl.xz or .jsonl.zst; without it, stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    data: Data = None,
    clues: Clues = None,
) -> None:
    """Write a task's training rows, as gesso train reads them."""
    from gesso.tasks.command import write_rows

    write_rows(_task(name, data, clues).training_rows(count, seed), count, out, force=force)


@app.command(epilog=EXIT_CODES)
def bench(
    what: Annotated[str, typer.Argument(help="train: steps on random weights.")],
    shape: Annotated[str, typer.Option(help="mini (from scratch) or 26b-a4b (LoRA).")] = "mini",
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after two that warm up.")] = 5,
    compile: Annotated[bool, typer.Option("--compile", help="With torch.compile.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; without it, the first GPU or the CPU.")] = None,
) -> None:
    """Measure what this machine does; one JSON object."""
    if what != "train":
        raise InputError(f"nothing to measure by the name of {what!r}; known is train")
    from gesso.api import find_device
    from gesso.bench.train import measure

    print_json(measure(shape, steps, find_device(device), compile))


def _version(wanted: bool) -> None:
    if wanted:
        print_text(f"gesso {gesso.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@dataclass
class Conversation:
    """What was said, and what the next answer is drawn from."""

    model: "Gesso"
    options: Options
    thinking: bool
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)
    question: str | None = None  # the last one, answered or not
    before: list[dict[str, str]] = field(default_factory=list)  # the messages it was asked after
    last_seed: int | None = None  # of its answer

    def __post_init__(self) -> None:
        self.seed = self.options.seed
        self.reset()

    def hear(self, line: str) -> None:
        match line.split() if line.startswith("/") else ["", line.strip()]:
            case ["", question]:
                if question:
                    self.ask(question, self.messages)
            case ["/help"]:
                note(CHAT_HELP)
            case ["/reset"]:
                self.reset()
            case ["/seed", number] if number.isdecimal() and int(number) < SEEDS:
                self.seed = int(number)
            case ["/retry"]:
                self.retry()
            case _:
                complain(f"no such command: {line.strip()}; /help lists them")

    def ask(self, question: str, before: list[dict[str, str]]) -> None:
        self.question, self.before, self.last_seed = question, before, None
        asked = [*before, {"role": "user", "content": question}]
        request = {**self.options.request(), "seed": self.seed}
        events = self.model.stream_chat(asked, thinking=self.thinking, **request)
        result = follow(self.model, events, self.options.watch)
        answer = self.model.read_answer(result)
        # Only now: a question whose answer was stopped is no part of the conversation.
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        self.last_seed = result.seed
        _deliver(replace(result, text=answer.text), as_json=self.options.json, thinking=answer.thinking)

    def retry(self) -> None:
        if self.question is None:
            complain("nothing to retry: no question was asked yet")
            return
        if self.seed is not None and self.seed == self.last_seed:
            self.seed = (self.seed + 1) % SEEDS  # the same seed would give the same answer
        self.ask(self.question, self.before)

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.question = None


# --- parts ----------------------------------------------------------------------------------------------------------


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise InputError("no prompt; give one as an argument or pipe it in")
    text = "\n".join(lines(interactive=False)) if given in (None, "-") else given
    if not text:
        raise InputError("the prompt is empty")
    return text


def _task(name: str, data: Sequence[Path] | None, clues: str | None) -> "Task":
    from gesso import tasks

    options: dict[str, Any] = {"data": tuple(data)} if data else {}
    if clues is not None:
        options["clues"] = _range(clues)
    for option in options:
        able = [task for task, kind in tasks.TASKS.items() if option in inspect.signature(kind).parameters]
        if name in tasks.TASKS and name not in able:
            raise InputError(f"--{option} is for {' and '.join(able)}; the task {name} takes none")
    if data and clues is not None:
        raise InputError("--clues is for puzzles of our own; those from --data have the clues they have")
    return tasks.task(name, **options)


def _range(text: str) -> tuple[int, int]:
    """30-36, or 30 for a range of one."""
    match = re.fullmatch("([0-9]{1,3})(?:-([0-9]{1,3}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise InputError(f"--clues is a number or a range from low to high, such as 24 or 30-36; got {text!r}")
    return low, high


def _deliver(result: "Result", *, as_json: bool, thinking: str | None = None) -> None:
    usage = result.usage
    if as_json:
        thoughts = {} if thinking is None else {"thinking": thinking}
        usage_and_rate = {**asdict(usage), "tokens_per_step": usage.tokens_per_step}
        print_json({**asdict(result), "usage": usage_and_rate, **thoughts})
        return
    if thinking:
        note(thinking)
    print_text(result.text)
    note(
        f"{usage.completion_tokens} tokens, {usage.denoising_steps} steps ({usage.tokens_per_step:.1f} tokens/step), "
        f"canvases {usage.canvases}, finish {result.finish_reason}, seed {result.seed}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (that of the process, when none is given); the exit code."""
    prepare()
    try:
        code = app(args=arguments, prog_name="gesso", standalone_mode=False) or 0
    except typer.TyperException as error:
        complain(f"{error.format_message()} See gesso --help.")
        return error.exit_code
    except InputError as error:
        complain(str(error))
        return 2
    except (GessoError, OSError) as error:
        complain(str(error))
        return 1
    if code == 130:
        show_cursor()
    return int(code)

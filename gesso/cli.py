"""The command line. Answers go to stdout, all else to stderr; torch is not imported before a model is needed."""

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gesso
from gesso import rewriting
from gesso.box import BASE, SOLVER
from gesso.errors import GessoError, InputError
from gesso.hardware import CARDS
from gesso.options import (
    EXIT_CODES,
    MODEL_HELP,
    Adapter,
    Device,
    Dtype,
    EntropyBound,
    First,
    Json,
    Last,
    Live,
    Model,
    Options,
    Preset,
    Seed,
    Steps,
    diffusion_option,
    with_options,
)
from gesso.terminal import complain, follow, lines, note, prepare, print_json, print_styled, print_text, show_cursor

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.engine.events import Result
    from gesso.tasks import Task

CHAT_HELP = """\
/reset   forget the conversation, keep the system message
/retry   the last question again, with the next seed
/seed N  draw the answers from this seed
/exit    leave, as Ctrl-D does
A message that begins with a slash: put a space before it. Ctrl-C stops an answer."""
SEEDS = 2**64

app = typer.Typer(
    help="DiffusionGemma on your own machine.",
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)


TaskName = Annotated[str, typer.Argument(metavar="TASK", help="sudoku, python_infill or structured.")]
Data = Annotated[list[Path] | None, typer.Option(help="A file of items instead of our own; may be repeated.")]
Clues = Annotated[
    str | None, typer.Option(metavar="LOW-HIGH", help="Clues of a Sudoku of our own, such as 30-36 or 24.")
]


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
    text, asked = _prompt(prompt), options.request()
    model = options.load()
    result = follow(model, model.stream(text, **asked), options.watch)
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


app.command(epilog=EXIT_CODES)(rewriting.infill)
app.command(epilog=EXIT_CODES)(rewriting.edit)


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
    from gesso import checkpoint, fit, hardware
    from gesso.info import describe, render

    card = None if gpu is None else hardware.find(gpu)
    if card is None and steps is not None:
        raise InputError("--steps belongs to --gpu: it is how many denoising steps to reckon with on that card")
    directory = checkpoint.find(model)
    report = describe(directory, model or f"the model in the box ({BASE})")
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
            "--model", "-m", envvar="GESSO_MODEL", help=f"Directory or hub name of a checkpoint; without it, {SOLVER}."
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
    solver = gesso.load(model or SOLVER, device=device, dtype=dtype, adapter=adapter)
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
    entropy_bound: EntropyBound = None,
    t_max: First = None,
    t_min: Last = None,
    plot: Annotated[Path | None, typer.Option(help="Write accuracy against steps as SVG.")] = None,
    constrained: Annotated[bool, typer.Option("--constrained", help="Hold answers to what items say of them.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, item by item, as one JSON object.")] = False,
) -> None:
    """Score a model on a task, every figure with its 95 % interval."""
    from gesso.tasks.command import run

    task = _task(name, data, clues)
    given = {"preset": preset, "entropy_bound": entropy_bound, "t_max": t_max, "t_min": t_min}
    found = gesso.load(model, device=device, adapter=adapter, max_batch=batch)
    evaluations = run(
        found, task, split=split, count=count, seed=seed, steps=steps or [], plot=plot, constrained=constrained,
        **{name: value for name, value in given.items() if value is not None},
    )  # fmt: skip
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
    what: Annotated[
        str,
        typer.Argument(
            help="train: steps on random weights; guide: what a constraint costs a step; serve: many clients at once."
        ),
    ],
    shape: Annotated[str, typer.Option(help="mini (the model in the box, from scratch) or 26b-a4b (LoRA).")] = "mini",
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after two that warm up.")] = 5,
    compile: Annotated[bool, typer.Option("--compile", help="With torch.compile.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; without it, the first GPU or the CPU.")] = None,
    fields: Annotated[int, typer.Option(min=1, help="guide: properties of the JSON schema.")] = 50,
    url: Annotated[str | None, typer.Option(help="serve: a running server; without it, one of its own.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="serve: how many at once.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="serve: how long.")] = 60.0,
) -> None:
    """Measure what this machine does; one JSON object."""
    if what == "train":
        from gesso.api import find_device
        from gesso.bench import train

        print_json(train.measure(shape, steps, find_device(device), compile))
    elif what == "guide":
        from gesso.bench import guide

        print_json(guide.measure(fields, steps))
    elif what == "serve":
        from gesso.bench import serve as load_test

        print_json(load_test.measure(url, clients, seconds))
    else:
        raise InputError(f"nothing to measure by the name of {what!r}; known are train, guide and serve")


@app.command(epilog=EXIT_CODES)
def serve(
    model: Model = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="An adapter to serve as a model; may be repeated.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Annotated[str | None, typer.Option(help="Pack the matrices while loading: fp8, int4 or nvfp4.")] = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What requests call the model.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 8,
    max_length: Annotated[int | None, typer.Option(min=1, help="Tokens of prompt and answer; default: all.")] = None,
    prefill: Annotated[int, typer.Option(min=1, help="Prompt tokens read between two denoising steps.")] = 2048,
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; more get 429.", rich_help_panel="Limits")
    ] = 256,
    request_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one request.", rich_help_panel="Limits")
    ] = None,
    total_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of all requests under way.", rich_help_panel="Limits")
    ] = None,
    body_bytes: Annotated[int, typer.Option(min=1, help="Size of a request.", rich_help_panel="Limits")] = 8 * 2**20,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.", rich_help_panel="Limits")] = 600.0,
    io_timeout: Annotated[
        float, typer.Option(help="Seconds a client may take to send, or to read.", rich_help_panel="Limits")
    ] = 30.0,
    drain: Annotated[float, typer.Option(help="Seconds to finish in after SIGTERM.", rich_help_panel="Limits")] = 60.0,
    settle: Annotated[int, diffusion_option("Steps after which a prefix is final; 0: with the canvas.", min=0)] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients need, one a line; or set GESSO_API_KEYS.")
    ] = None,
    without_keys: Annotated[bool, typer.Option("--without-keys", help="Let everyone in who can connect.")] = False,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call; may be repeated.")
    ] = None,
) -> None:
    """Serve the OpenAI API; without arguments, the model in the box to this machine alone."""
    try:
        from gesso.serve import command
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gesso"):
            raise
        raise InputError(f"gesso serve needs {error.name}: pip install 'gesso[serve]'") from None
    from gesso.serve.keys import read_keys
    from gesso.serve.settings import EngineSettings, Limits, ServerSettings

    keys = read_keys(api_key_file)
    settings = ServerSettings(
        engine=EngineSettings(
            model=model,
            adapters=dict(map(_named, adapter or [])),
            device=device,
            dtype=dtype,
            quantize=quantize,
            max_batch=max_batch,
            max_length=max_length,
            prefill=prefill,
        ),
        limits=Limits(
            queue=queue,
            request_tokens=request_tokens,
            total_tokens=total_tokens,
            body_bytes=body_bytes,
            timeout=timeout,
            io_timeout=io_timeout,
            drain=drain,
        ),
        name=name or ("gesso" if model is None else Path(model).name),
        keys=keys,
        cors_origins=tuple(cors_origin or ()),
        settle=settle,
        hosts=command.check_keys(host, keys, without_keys),
    )
    command.serve(settings, host, port)


def _named(adapter: str) -> tuple[str, str]:
    name, equals, directory = adapter.partition("=")
    if not (name and equals and directory):
        raise InputError(f"--adapter takes a name and a directory, like sql=adapters/sql; got {adapter!r}")
    return name, directory


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

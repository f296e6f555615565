"""Fill a hole at every position of held-out files, and check that the text around it is unchanged.

    python -m examples.python_infill.holes --state holes.json --minutes 10
    for i in 1 2; do python -m examples.python_infill.holes --part $i/2 --state holes-$i.json --minutes 60 & done; wait

The files are those of the standard library, tests included, in the test and validation splits of `python_infill`. The
shortest with at least 500 characters are used, because every position is tried and longer files have no other kinds of
token boundaries.

A hole begins at every character and is up to 23 characters long. This checks the infill code and not a model, so the
model is small, with random weights and the tokenizer of gesso-mini: it writes anything at any boundary. Positions
alternate between both infill methods.

Positions come in passes, every 128th of each file first, so that an interrupted run has covered all files. A run
continues from `--state`. `--part` selects one in N batches, to share the work among processes. The result is printed as
JSON; the exit code is 1 if anything changed.
"""

import argparse
import json
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from gesso.api import Gesso
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.find import find
from gesso.checkpoint.generation import GenerationDefaults
from gesso.engine.events import Result, Scored, Usage
from gesso.engine.request import Request, Score
from gesso.eval.python_infill import read_source
from gesso.eval.task import split_of
from gesso.infill.boundary import nearest_start
from gesso.infill.results import InfillResult
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma

SHORTEST = 500  # characters of a file
STRIDE = 128
AT_ONCE = 32
SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "num_global_key_value_heads": 1, "global_head_dim": 16, "moe_intermediate_size": 16, "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
BRIEF: dict[str, Any] = {"steps": 1, "canvas_length": 16, "context": 12}

Hole = tuple[str, str, int]  # file name, its text, and the start of the hole


def small_model() -> Gesso:
    directory = find(None)
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    raw["text_config"] |= SMALL
    config = Config.from_dict(raw)
    model = DiffusionGemma(config)
    begin(model, seed=0)
    defaults = GenerationDefaults.from_directory(directory, config)
    tokenizer = Tokenizer.from_directory(directory)
    return Gesso(model.eval(), tokenizer, defaults, directory, max_batch=AT_ONCE, max_length=None)


def held_out(library: Path, count: int) -> dict[str, str]:
    found = {}
    for path in library.rglob("*.py"):
        name = path.relative_to(library).as_posix()
        if split_of(name) != "train" and not {"site-packages", "dist-packages"} & set(path.parts):
            text = read_source(path)
            if text and len(text) >= SHORTEST:
                found[name] = text
    shortest = sorted(found, key=lambda name: (len(found[name]), name))[:count]
    return {name: found[name] for name in shortest}


def holes(files: dict[str, str]) -> Iterator[Hole]:
    for first in range(STRIDE):
        for name, text in files.items():
            for start in range(first, len(text) + 1, STRIDE):
                yield name, text, start


def batches(files: dict[str, str], part: int, parts: int) -> Iterator[list[Hole]]:
    """Yield one in `parts` batches, beginning with batch `part`, counted from 1."""
    left = holes(files)
    return islice(iter(lambda: list(islice(left, AT_ONCE)), []), part - 1, None, parts)


def changed(g: Gesso, batch: Sequence[Hole]) -> list[str]:
    """Fill the holes of a batch together. Return the deviations found."""
    plans, found = [], []
    for name, text, start in batch:
        end = min(len(text), start + 7 * start % 24)
        method = ("prompt", "pinned")[start % 2]
        asked: dict[str, Any] = {"method": method, "seed": start, **BRIEF}
        asked |= {"lengths": [1 + start % 5]} if method == "pinned" and text[end:] else {"lengths": None}
        asked |= {} if asked["lengths"] else {"max_new_tokens": 4}
        plans.append((f"{name}:{start}:{end} {method}", g.infill_plan(text[:start], text[end:], **asked)))
    # A plan for one length runs one request, then scores a pinned hole. With one candidate, any score will do.
    requests = [[request for request in next(plan) if isinstance(request, Request)] for _, plan in plans]
    results = iter(g.run([request for several in requests for request in several]))
    for (where, plan), several, (_, text, start) in zip(plans, requests, batch, strict=True):
        answers = [next(results) for _ in several]
        try:
            scores = [one for one in plan.send(answers) if isinstance(one, Score)]
            plan.send([Scored(0, (0.0,) * len(one.texts), Usage()) for one in scores])
        except StopIteration as end_of_plan:
            end = min(len(text), start + 7 * start % 24)
            wrong = _wrong(g, text[:start], text[end:], several[0], answers[0], end_of_plan.value)
            found += [f"{where}: {what}" for what in wrong]
        else:
            found.append(f"{where}: a second request")
    return found


def _wrong(g: Gesso, before: str, after: str, request: Request, result: Result, filled: InfillResult) -> list[str]:
    """Compare the bytes of the prompt, the generated tokens and the pinned suffix with the given text."""
    writes = g.guides.words.bytes_of
    written = [b"".join(writes.get(token, b"") for token in part) for part in (request.prompt, result.tokens)]
    hole = len(result.tokens) - len(request.pins)
    first = b"".join(writes.get(token, b"") for token in result.tokens[:hole])
    pinned = [token for _, token in sorted(request.pins.items())]
    kept, dropped = g.healer.split(before[-200:])
    shown = kept if request.guide else before
    wrong = []
    if filled.method == "pinned" and not shown.encode().endswith(written[0]):
        wrong.append("the prompt does not end the prefix")
    if request.guide and not first.startswith(dropped.encode()):  # within the hole, without the suffix
        wrong.append("the end of the prefix is not repeated")
    if list(result.tokens[hole:]) != pinned or g.decode(pinned) != nearest_start(g.tokenizer, after, len(pinned)):
        wrong.append("the suffix differs")
    text = g.decode(result.tokens[:hole])
    if "\ufffd" not in text and text != (dropped if request.guide else "") + filled.text:
        wrong.append("the middle differs from the generated tokens")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path(sysconfig.get_path("stdlib")), help="directory of Python files"
    )
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--part", default="1/1", help="I/N: one in N batches, beginning with batch I")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--state", type=Path, help="file to save progress in; without it, every run starts from the beginning"
    )
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is too small for more
    part, parts = map(int, asked.part.split("/"))
    g, files = small_model(), held_out(asked.data, asked.files)
    total = sum(map(len, batches(files, part, parts)))
    run = {"files": asked.files, "part": asked.part}
    noted = asked.state and asked.state.exists()
    state = json.loads(asked.state.read_text()) if noted else {**run, "batches": 0, "done": 0, "changed": []}
    if {name: state[name] for name in run} != run:
        sys.exit(f"{asked.state} belongs to part {state['part']} over {state['files']} files; use another --state")
    until = time.monotonic() + 60 * asked.minutes
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("positions", total=total, completed=state["done"])
        for batch in islice(batches(files, part, parts), state["batches"], None):
            if time.monotonic() >= until:
                break
            state["changed"] += changed(g, batch)
            state["batches"] += 1
            state["done"] += len(batch)
            bar.update(shown, completed=state["done"])
            if asked.state and state["batches"] % 64 == 0:
                _note(asked.state, state)
    if asked.state:
        _note(asked.state, state)
    print(json.dumps({**state, "files": len(files), "positions": total}))
    return 1 if state["changed"] else 0


def _note(path: Path, state: dict[str, Any]) -> None:
    unfinished = path.with_name(f".{path.name}.partial")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())

"""Run every operation of chat templates on large and hostile values, and report time and memory.

    python -m tools.hostile_templates
    python -m tools.hostile_templates --only title,round

Each operation runs in a child process of its own, on each value with no argument, each argument, and some pairs of
arguments. Each case must end with a text or an error within the limits. Linux only.
"""

import argparse
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gesso.chat.template import compiled, render
from gesso.chat.template_budget import MAX_BITS, MAX_CHARS, NODE, Runaway
from gesso.chat.template_costs import FILTERS, METHODS, OPERATORS, TESTS

SECONDS, MEMORY = 3.0, 512 * 2**20  # of processor time of a case, and of memory of all cases of an operation
END_SECONDS, END_MEMORY = 60, 4 * 2**30  # at which an operation is ended
SHORT = 1000

HALF = MAX_CHARS // 2
TEXTS = {
    "letters": "a" * MAX_CHARS,
    "words": "ab " * (MAX_CHARS // 3),
    "lines": "\u2028" * MAX_CHARS,
    "astral": "\U0001f600" * MAX_CHARS,
    "markup": "&'" * HALF,
    "digits": "9" * MAX_CHARS,
    "controls": "\0" * MAX_CHARS,
    "percent": "%99999999999d",
    "braces": "{:99999999999}",
    "short": "a-b " * SHORT,
}
LISTS = {
    "numbers": list(range(MAX_CHARS // NODE)),
    "strings": [f"text {number}" for number in range(MAX_CHARS // (2 * NODE))],
    "objects": [{"a": {"b": number % 7}} for number in range(MAX_CHARS // (8 * NODE))],
    "pairs": dict.fromkeys(map(str, range(MAX_CHARS // (2 * NODE))), 1),
}
NUMBERS = {"many bits": (1 << MAX_BITS - 1) + 1, "negative": -1_000_000_000, "real": -1.7976931348623157e308}
DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP, 1]
VALUES: dict[str, Any] = {**TEXTS, **LISTS, **NUMBERS, "deep": DEEP}
ARGUMENTS: dict[str, Any] = {
    "billion": 1_000_000_000,
    "minus billion": -1_000_000_000,
    "thousand": 1_000,
    "half": "b" + "a" * (HALF - 1),
    "nearly": "ab" + "a" * (HALF - 2),
    "letter": "a",
    "space": " ",
    "nothing": "",
    "dots": "a." * 100_000,
    "commas": "a," * 100_000,
    "attribute": "a.b",
    "test": "odd",
    "list": LISTS["strings"],
    "percent": TEXTS["percent"],
}
PAIRS = list(itertools.product(("letter", "nothing", "billion", "test"), ("half", "billion", "letter")))


@dataclass(frozen=True)
class Operation:
    kind: str
    name: str
    values: tuple[str, ...]

    def source(self, arguments: int) -> str:
        """Return a template that applies the operation to `v` and takes all elements of the result."""
        given = ", ".join("xy"[:arguments])
        expression = {
            "filter": f"v|{self.name}({given})",
            "method": f"v.{self.name}({given})",
            "test": f"v is {self.name}({given})" if given else f"v is {self.name}",
            "operator": f"v {self.name} x",
        }[self.kind]
        return f"{{% set r = {expression} %}}{{{{ r|list|length if r is iterable and r is not string else r }}}}"


def operations() -> Iterator[Operation]:
    """Yield every operation that is available."""
    for name in FILTERS:
        yield Operation("filter", name, tuple(VALUES))
    for name in TESTS:
        if name.isidentifier():  # the others are other names of these
            yield Operation("test", name, tuple(VALUES))
    for name in OPERATORS:
        yield Operation("operator", name, tuple(VALUES))
    of_type = {str: tuple(TEXTS), list: ("numbers", "strings", "deep"), dict: ("pairs",), int: ("many bits",),
               float: ("real",)}  # fmt: skip
    for type_, values in of_type.items():
        for name in METHODS[type_]:
            yield Operation("method", name, values)


@dataclass(frozen=True)
class Verdict:
    operation: Operation
    ends: dict[str, int]
    slowest: tuple[float, str]
    memory: int

    @property
    def within_limits(self) -> bool:
        return "killed" not in self.ends and self.slowest[0] <= SECONDS and self.memory <= MEMORY


def judged(operation: Operation) -> Verdict:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(operation, writer)
    os.close(writer)
    with os.fdopen(reader) as lines:
        cases = [json.loads(line) for line in lines if line.endswith("\n")]
    _, status, used = os.wait4(child, 0)
    ends = Counter(end for end, _, _ in cases) + Counter({"killed": int(status != 0)})
    slowest = max(((seconds, name) for _, seconds, name in cases), default=(0.0, ""))
    return Verdict(operation, dict(ends), slowest, max(used.ru_maxrss - before, 0) * 1024)


def _in_child(operation: Operation, writer: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (END_MEMORY, END_MEMORY))
    cases: list[tuple[str, ...]] = [(value,) for value in operation.values]
    if operation.kind == "operator":
        cases = []
    chosen = [*((argument,) for argument in ARGUMENTS), *(PAIRS if operation.kind in ("filter", "method") else ())]
    cases += [(value, *arguments) for value in operation.values for arguments in chosen]
    templates = {count: compiled(operation.source(count)) for count in {len(case) - 1 for case in cases}}
    for value, *arguments in cases:
        signal.setitimer(signal.ITIMER_PROF, END_SECONDS)  # of processor time; its signal ends the process
        began = time.process_time()
        given = dict(zip("xy", (ARGUMENTS[name] for name in arguments), strict=False))
        try:
            render(templates[len(arguments)], {"v": VALUES[value], **given})
            end = "rendered"
        except MemoryError:
            end = "killed"
        except Exception as error:
            end = "stopped" if isinstance(error, Runaway) else "error"
        seconds = time.process_time() - began
        os.write(writer, json.dumps((end, seconds, " ".join((value, *arguments)))).encode() + b"\n")
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of operations, separated by commas")
    only = parser.parse_args().only
    verdicts = []
    for operation in operations():
        if only is None or operation.name in only.split(","):
            verdicts.append(judged(operation))
            if not verdicts[-1].within_limits:
                print("outside the limits:", verdicts[-1], flush=True)
    totals = sum((Counter(verdict.ends) for verdict in verdicts), Counter[str]())
    print(f"{len(verdicts)} operations, {totals.total():,} cases:", dict(totals))
    slowest = max(verdicts, key=lambda verdict: verdict.slowest)
    largest = max(verdicts, key=lambda verdict: verdict.memory)
    print(f"slowest: {slowest.slowest[0]:.2f} s, {slowest.operation.name} of {slowest.slowest[1]}")
    print(f"most memory: {largest.memory / 2**20:.0f} MiB, {largest.operation.name}")
    return 0 if all(verdict.within_limits for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

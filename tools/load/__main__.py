"""Load tests of a server, and measurements of its streams and studio.

    python -m tools.load attacks                   a client beside denial-of-service attacks; --letters a,c selects some
    python -m tools.load soak 60                   60 minutes of mixed, hostile and crashing use
    python -m tools.load crashes                   200 requests with known texts while 12 engines are killed
    python -m tools.load mixed 2000                memory of all processes during 2,000 requests of every kind
    python -m tools.load faults                    a killed engine, clients that leave, readers that stop
    python -m tools.load hangups 200               200 clients that hang up, and what they leave behind
    python -m tools.load beside-infill             how much infill requests slow the steps of others
    python -m tools.load joining                   how long first drafts take while requests join and leave
    python -m tools.load hot-load                  what clients notice while adapters are loaded beside them
    python -m tools.load first-event URL URL       how soon running servers have read a chat, asked in turn
    python -m tools.load first-text --count 24     how soon a stream has text to send
    python -m tools.load scrubbing                 the cost of scrubbing in the studio, in Chromium

attacks, soak, hangups, beside-infill and joining start a server, or use the one at --url. crashes, mixed, faults and
hot-load always start one. The exit status of joining is 1 if a request failed, if its first draft took too long, or if
the server captured or compiled anything after it was ready. That of crashes, mixed and hot-load is 1 if a request
failed or its text was not that of the same request before; that of mixed also if a process has grown since the first
quarter. That of faults is 1 if an answer was recorded wrongly, if a client was blamed, or if the server did not recover
within its heartbeat.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from gesso.bench import serve
from gesso.errors import InputError

PIPED_WIDTH = 400  # columns; the longest rows of the table of attacks have 250


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    attacks = commands.add_parser("attacks")
    attacks.add_argument("--letters", metavar="A,B", help="only the attacks with these letters")
    attacks.add_argument("--json", action="store_true", help="print everything as JSON")
    soak = commands.add_parser("soak")
    soak.add_argument("minutes", type=float)
    crashes = commands.add_parser("crashes")
    crashes.add_argument("--requests", type=int, default=200)
    crashes.add_argument("--kills", type=int, default=12)
    mixed = commands.add_parser("mixed")
    mixed.add_argument("requests", type=int)
    faults = commands.add_parser("faults")
    hangups = commands.add_parser("hangups")
    hangups.add_argument("visitors", type=int)
    beside = commands.add_parser("beside-infill")
    beside.add_argument("--seconds", type=float, default=20, help="of each of the three phases")
    joining = commands.add_parser("joining")
    joining.add_argument("--seconds", type=float, default=60)
    joining.add_argument("--clients", type=int, default=8, help="no more than places in the batch")
    hot_load = commands.add_parser("hot-load")
    hot_load.add_argument("--seconds", type=float, default=20, help="the first third of them without loads")
    hot_load.add_argument("--clients", type=int, default=4, help="beside the one that loads adapters")
    hot_load.add_argument("--experts", action="store_true", help="adapters of attention, MLP and experts")
    for command in (attacks, crashes, mixed, faults, beside, joining, hot_load):
        command.add_argument("arguments", nargs="*", help="of gesso serve, after --")
    for command in (attacks, soak, hangups, beside, joining):
        command.add_argument("--url", help="a running server; default: a new one")
    first_event = commands.add_parser("first-event")
    first_event.add_argument("urls", nargs="+", metavar="URL")
    first_event.add_argument("--rounds", type=int, default=20)
    first_text = commands.add_parser("first-text")
    first_text.add_argument("--model")
    first_text.add_argument("--preset", default="balanced")
    first_text.add_argument("--count", type=int, default=100, help="held-out items of each task")
    commands.add_parser("scrubbing")
    try:
        run(parser.parse_args(arguments))
    except InputError as error:
        sys.exit(str(error))


def console() -> Console:
    """Return a console that wraps no cell when it is piped: a file or another program has no width."""
    return Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)


def has_failed(report: Mapping[str, Any]) -> bool:
    """Return whether a report has a bad answer, or says that the run has not passed."""
    return not report.get("passed", True) or bool(report.get("failed") or report.get("changed_texts"))


def run(asked: argparse.Namespace) -> None:
    failed = False
    match asked.command:
        case "attacks":
            from tools.load import under_attack

            found = under_attack.measure(asked.url, asked.letters, asked.arguments)
            if not asked.json:
                under_attack.render(found, console())
                return
        case "soak":
            from tools.load import soak

            found = soak.measure(asked.url, asked.minutes)
        case "crashes":
            from tools.load import crashes

            found = crashes.measure(asked.requests, asked.kills, asked.arguments)
            failed = has_failed(found)
        case "mixed":
            from tools.load import mixed

            found = mixed.measure(asked.requests, asked.arguments)
            failed = has_failed(found)
        case "faults":
            from tools.load import faults

            found = faults.measure(asked.arguments)
            failed = has_failed(found)
        case "hangups":
            from tools.load import hangups

            found = hangups.measure(asked.url, asked.visitors)
        case "beside-infill":
            from tools.load import beside_infill

            found = beside_infill.measure(asked.url, asked.seconds, asked.arguments)
        case "joining":
            from tools.load import joining

            found = joining.measure(asked.url, asked.seconds, asked.clients, asked.arguments)
            failed = has_failed(found)
        case "hot-load":
            from tools.load import hot_load

            targets = ("attention", "mlp", "experts") if asked.experts else ("attention", "mlp")
            found = hot_load.measure(asked.seconds, asked.clients, asked.arguments, targets)
            failed = has_failed(found)
        case "first-event":
            found = dict(enumerate(serve.first_event_medians(asked.urls, asked.rounds)))
        case "first-text":
            from tools.load import first_text

            found = first_text.measure(asked.model, asked.preset, asked.count)
        case _:
            from tools.load import scrubbing

            found = scrubbing.measure()
    print(json.dumps(found, indent=2))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Measure how long a server works on the text of streamed answers, on the event loop that other requests wait for.

    python -m benchmarks.stream_work

Each answer arrives in events of a few tokens, for a request with tools. The first table has the CPU time of all events
of a long answer, and of its end. The second has the CPU time of one event late in an answer whose text is hostile.
"""

import argparse
import time

from gesso import bundled
from gesso.chat.tokenizer import Tokenizer
from gesso.serve.deltas import AnswerDeltas
from gesso.serve.wire import Ended

MARKED = "<|tool_call>call:tool_7{"
QUOTE = '<|"|>'
# The beginning of an answer, and what it repeats.
ANSWERS = {
    "text": ("", "The quick brown fox jumps over the lazy dog, at 12:30. "),
    "thought": ("<|channel>thought\n", "Is 3 < 4? Then the next step follows from the first.\n"),
    "call with a long text": (f"{MARKED}text:{QUOTE}", 'def f(x):\n    return {"a": [x, (1, 2)]}\n'),
    "call with many numbers": (f"{MARKED}rows:[", "[1, 2.5, -3],"),
    "many calls": ("", f"{MARKED}a:1,b:{QUOTE}two{QUOTE}}}<tool_call|>\n"),
}
HOSTILE = {
    "names of tools that are unknown": ("", ":t{"),
    "calls without tags": ("", ":tool_7{}"),
    "arguments after a call": (f"{MARKED}}}", ",a:1"),
    "escapes in an open string": (f'{MARKED}a:"', '\\"'),
    "brackets in an open call": (f"{MARKED}a:", "["),
    "closing brackets": (f"{MARKED}}}", ")"),
    "an open name": ("<|tool_call>", "a"),
    "padding": ("Hi", "<pad>"),
}


def tokens_of(tokenizer: Tokenizer, opening: str, unit: str, count: int) -> list[int]:
    """Return the first tokens of an answer that goes on with a unit for ever."""
    tokens = tokenizer.encode(opening + unit * count, bos=False)
    return list(tokens[:count])


def seconds(deltas: AnswerDeltas, tokens: list[int]) -> float:
    began = time.process_time()
    deltas.settle(tokens)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536, help="of an answer")
    parser.add_argument("--event", type=int, default=16, help="tokens of an event")
    parser.add_argument("--tools", type=int, default=300)
    asked = parser.parse_args()
    tokenizer = Tokenizer.from_directory(bundled.directory())
    tools = tuple(f"tool_{number}" for number in range(asked.tools))

    print(f"| {asked.tokens:,} tokens | all events, s | longest event, ms | end, s |\n" + "|---" * 4 + "|")
    for name, (opening, unit) in ANSWERS.items():
        tokens = tokens_of(tokenizer, opening, unit, asked.tokens)
        deltas = AnswerDeltas(tokenizer, chat=True, tools=tools)
        events = [seconds(deltas, tokens[at : at + asked.event]) for at in range(0, len(tokens), asked.event)]
        began = time.process_time()
        text = tokenizer.decode(tokens)
        deltas.end(Ended(id=0, text=text, tokens=tokens, finish_reason="length", seed=0, usage={}))
        end = time.process_time() - began
        print(f"| {name} | {sum(events):.2f} | {1000 * max(events):.1f} | {end:.2f} |", flush=True)

    print(f"\n| hostile text | event after {asked.tokens:,} tokens, ms |\n" + "|---" * 2 + "|")
    for name, (opening, unit) in HOSTILE.items():
        tokens = tokens_of(tokenizer, opening, unit, asked.tokens + asked.event)
        deltas = AnswerDeltas(tokenizer, chat=True, tools=tools)
        deltas.settle(tokens[: asked.tokens])
        print(f"| {name} | {1000 * seconds(deltas, tokens[asked.tokens :]):.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""Count the questions that an adapter answers exactly as the rows do: python -m examples.faq.exact runs/faq/adapter"""

import json
import sys
from pathlib import Path

import gesso

ROWS = Path(__file__).parent / "faq.jsonl"


def count(adapter: Path) -> tuple[int, int]:
    """Return the number of exact answers, with default settings and seed 0, and the number of rows."""
    g = gesso.load(adapter=adapter)
    chats = [json.loads(line)["messages"] for line in ROWS.read_text(encoding="utf-8").splitlines()]
    exact = sum(g.chat(chat[:-1], seed=0).text.strip() == chat[-1]["content"].strip() for chat in chats)
    return exact, len(chats)


if __name__ == "__main__":
    print("{} of {} answers are exact".format(*count(Path(sys.argv[1]))))

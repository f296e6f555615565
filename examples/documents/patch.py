"""Patches: the answer that the model writes, and the only way in which it can change a document.

The model sees the document with line numbers and writes the lines that change:

    7<tab>text     line 7 becomes this text
    7+<tab>text    this line is inserted after line 7; line 0 is before the first
    7-             line 7 is deleted

The answer for a document that needs no change is `ok`. All other lines are copied by `apply`, not by the model. `apply`
also ignores every change of letters or digits: a replacement must have those of its line, and an inserted or deleted
line must have none. A patch can therefore change only punctuation and white space, and only in the lines it names.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

NOTHING = "ok"
MARKS = r"[ -/:-@\[-`{-~]*"  # ASCII punctuation and spaces
CHANGE = re.compile(r"(\d{1,3})(?:(\+?)\t(.*)|-)")


def numbered(text: str) -> str:
    return "".join(f"{number}\t{line}\n" for number, line in enumerate(text.split("\n"), 1))


def letters(text: str) -> str:
    """Return the letters and digits of a text, in order."""
    return "".join(filter(str.isalnum, text))


def pattern(text: str) -> str:
    """Return the regular expression of the patches of a text that `apply` accepts in full.

    It has the letters and digits of every line, with any ASCII punctuation and spaces between them. Other characters,
    such as dashes and emojis, are fixed, too.
    """
    changes = [rf"(?:{'|'.join(map(str, range(text.count(chr(10)) + 2)))})\+\t{MARKS}"]
    for number, line in enumerate(text.split("\n"), 1):
        fixed = [character for character in line if character.isalnum() or not character.isascii()]
        changes.append(rf"{number}\t{MARKS}" + "".join(re.escape(character) + MARKS for character in fixed))
        changes += [] if letters(line) else [f"{number}-"]
    change = f"(?:{'|'.join(changes)})"
    return rf"{NOTHING}|{change}(?:\n{change})*"


def make(damaged: str, original: str) -> str:
    """Return the shortest patch from one text to the other. Only punctuation and white space may differ."""
    old, new = damaged.split("\n"), original.split("\n")
    Changes = tuple[str, ...]

    @cache
    def shortest(i: int, j: int) -> Changes | None:
        """Return the fewest changes from the lines at i on to the lines at j on; None if there are none."""
        if i == len(old) and j == len(new):
            return ()
        if i < len(old) and j < len(new) and old[i] == new[j]:
            return shortest(i + 1, j + 1)
        options: list[tuple[str, Changes | None]] = []
        if i < len(old) and j < len(new) and letters(old[i]) == letters(new[j]):
            options.append((f"{i + 1}\t{new[j]}", shortest(i + 1, j + 1)))
        if j < len(new) and not letters(new[j]):
            options.append((f"{i}+\t{new[j]}", shortest(i, j + 1)))
        if i < len(old) and not letters(old[i]):
            options.append((f"{i + 1}-", shortest(i + 1, j)))
        return min(((change, *rest) for change, rest in options if rest is not None), key=len, default=None)

    found = shortest(0, 0)
    if found is None:
        raise ValueError("the texts differ in letters or digits; a patch changes punctuation and white space only")
    return "\n".join(found) or NOTHING


def changes(patch: str) -> Iterator[re.Match[str]]:
    """Yield the well-formed lines of a patch: number, "+" if a line is inserted, and text (None: deleted)."""
    return filter(None, map(CHANGE.fullmatch, patch.split("\n")))


def apply(patch: str, text: str) -> str:
    """Return the text with the changes that are allowed. Malformed lines, and later changes of a line, are ignored."""
    lines = text.split("\n")
    replaced: dict[int, str | None] = {}
    inserted: dict[int, list[str]] = defaultdict(list)
    for change in changes(patch):
        at, line = int(change[1]), change[3]
        is_inserted = change[2] == "+"
        present = lines[at - 1] if 0 < at <= len(lines) and not is_inserted else ""
        if at > len(lines) or letters(line or "") != letters(present):
            continue
        if is_inserted:
            inserted[at].append(line)
        elif at > 0:
            replaced.setdefault(at, line)
    kept = list(inserted[0])
    for at, line in enumerate(lines, 1):
        after = replaced.get(at, line)
        kept += [] if after is None else [after]
        kept += inserted[at]
    return "\n".join(kept)

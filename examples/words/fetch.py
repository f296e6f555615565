"""Write a list of English words: python -m examples.words.fetch

The words are those of the wheel symspellpy 6.10.1 (MIT), which pip downloads. The wheel is unzipped, never installed.
"""

import sys
import zipfile
from pathlib import Path

from examples.python_infill.wheels import Package, complaint, fetch
from examples.words.domain import FILE
from gesso.errors import InputError

WHEEL = Package(
    name="symspellpy",
    version="6.10.1",
    license="MIT",
    sha256="a653a6c125839a21ada87c3e044d690fc3b39872efbd7b7270db3de9471315e1",
)
MEMBER = "symspellpy/frequency_dictionary_en_82_765.txt"  # a word and its frequency per line


def words_of(wheel: Path) -> list[str]:
    """Return the words in the wheel, the most frequent first."""
    with zipfile.ZipFile(wheel) as members:
        return [line.split()[0] for line in members.read(MEMBER).decode("utf-8-sig").splitlines()]


def main() -> None:
    try:
        if FILE.exists():
            raise InputError(f"{FILE}: already exists; delete it to write it again")
        (wheel,) = fetch([WHEEL], FILE.parent / "wheels", print)
        if wrong := complaint(WHEEL, wheel):
            raise InputError(f"{wheel}: {wrong}")
    except InputError as error:
        sys.exit(str(error))
    words = words_of(wheel)
    FILE.write_text("\n".join(words) + "\n", encoding="utf-8")
    print(f"{FILE}: {len(words):,} words")


if __name__ == "__main__":
    main()

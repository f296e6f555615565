"""`python -m examples.sudoku_images.fonts --out data/fonts`: download the fonts of the pictures.

`fonts.toml` lists them, pinned by the hash of the wheel that has them. `train/` gets those to train on, and `held-out/`
those that only evaluation uses. None of them is part of this repository.
"""

import argparse
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.python_infill.wheels import PERMISSIVE, Package, complaint, fetch, read_packages
from gesso.errors import GessoError, InputError

LIST = Path(__file__).parent / "fonts.toml"
# Licences of fonts, and their patterns in the metadata of a wheel.
LICENCES = {**PERMISSIVE, "OFL-1.1": r"\bOFL\b", "GUST": r"\bGUST Font License\b"}
TRAIN, HELD_OUT = "train", "held-out"


@dataclass(frozen=True, kw_only=True)
class FontPackage(Package):
    files: Sequence[str]  # members of the wheel
    held_out: bool = False  # never in training


def write_fonts(packages: Sequence[FontPackage], out: Path, cache: Path) -> list[Path]:
    """Write the fonts of some packages to directories in `out`, and return their files."""
    wheels = fetch(packages, cache, lambda line: print(line, file=sys.stderr, flush=True))
    written = []
    for package, wheel in zip(packages, wheels, strict=True):
        if found := complaint(package, wheel, LICENCES):
            raise InputError(f"{package.name}: {found}; correct its licence in {LIST.name}, or remove it")
        target = out / (HELD_OUT if package.held_out else TRAIN)
        target.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as members:
            for member in package.files:
                file = target / Path(member).name
                file.write_bytes(members.read(member))
                written.append(file)
    return written


def fonts_in(directory: Path) -> tuple[str, ...]:
    """Return the files of the fonts in a directory, by name: a seed then draws the same font on every machine."""
    found = tuple(str(file) for file in sorted(directory.glob("*")) if file.suffix.lower() in (".ttf", ".otf"))
    if not found:
        raise InputError(
            f"{directory} has no fonts (.ttf, .otf); `python -m examples.sudoku_images.fonts --out data/fonts` "
            f"writes data/fonts/{TRAIN} and data/fonts/{HELD_OUT}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Download fonts.")
    parser.add_argument("--out", type=Path, default=Path("data/fonts"), help="directory for the fonts")
    parser.add_argument("--cache", type=Path, default=Path("data/wheels"), help="directory for the wheels")
    options = parser.parse_args()
    try:
        files = write_fonts(read_packages(LIST, FontPackage), options.out, options.cache)
    except GessoError as error:
        parser.error(str(error))
    for directory in (TRAIN, HELD_OUT):
        sizes = [file.stat().st_size for file in files if file.parent.name == directory]
        print(f"{options.out / directory}: {len(sizes)} fonts, {sum(sizes) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

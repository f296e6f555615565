"""Write the checkpoint that training starts from: gesso-mini, with a tokenizer that makes one token of each residue.

    python -m examples.proteins.base --out data/proteins/model

The merges of gesso-mini's tokenizer come from Python code: they would make one token of LL or ST, and a token would no
longer be a residue. Without them, every character is a token. The vocabulary and the weights stay the same.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import gesso
from examples.letters import without_merges
from gesso.errors import InputError


def write_base(out: Path) -> None:
    source = gesso.load("gesso-mini", device="cpu").directory
    if out.exists():
        raise InputError(f"--out {out}: already exists; delete it to write it again")
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("README.md"))
    path = out / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(without_merges(tokenizer)), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/proteins/model"), help="a directory to create")
    try:
        write_base(parser.parse_args(arguments).out)
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

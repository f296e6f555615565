"""Write the forms of English verbs: python -m examples.verbs.fetch

They are those of the wheel lemminflect 0.2.3 (MIT), which pip downloads. The wheel is unzipped, never installed. Its
authors took them from the SPECIALIST Lexicon of the United States National Library of Medicine.
"""

import gzip
import sys
import zipfile
from pathlib import Path

from examples.python_infill.wheels import Package, complaint, fetch
from examples.verbs.domain import FILE
from gesso.errors import InputError

WHEEL = Package(
    name="lemminflect",
    version="0.2.3",
    license="MIT",
    sha256="1cf470efa783733ca5654cc1a6ee1de774e59031e61bf6210467625e84a8cf1c",
)
MEMBER = "lemminflect/resources/infl_lu.csv.gz"  # `go,verb,went,gone,going,goes`; alternatives are divided by /


def verbs_of(wheel: Path) -> list[str]:
    """Return infinitive, past and present participle of each verb in the wheel."""
    with zipfile.ZipFile(wheel) as members:
        lines = gzip.decompress(members.read(MEMBER)).decode("utf-8").splitlines()
    found = [line.split(",") for line in lines]
    verbs = [(verb, past, present) for verb, kind, past, *rest in found if kind == "verb" for present in rest[1:2]]
    return [" ".join(form.split("/")[0] for form in forms) for forms in verbs]


def main() -> None:
    try:
        if FILE.exists():
            raise InputError(f"{FILE}: already exists; delete it to write it again")
        (wheel,) = fetch([WHEEL], FILE.parent / "wheels", print)
        if wrong := complaint(WHEEL, wheel):
            raise InputError(f"{wheel}: {wrong}")
    except InputError as error:
        sys.exit(str(error))
    verbs = verbs_of(wheel)
    FILE.write_text("\n".join(verbs) + "\n", encoding="utf-8")
    print(f"{FILE}: {len(verbs):,} verbs")


if __name__ == "__main__":
    main()

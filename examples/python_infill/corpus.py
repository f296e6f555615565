"""The Python training corpus: the standard library's train split, and packages under permissive licences.

The packages are downloaded as wheels (`wheels.py`). The corpus excludes evaluation data: held-out files of the standard
library, their copies in packages, HumanEval and MBPP.
"""

import ast
import gc
import hashlib
import itertools
import json
import lzma
import re
import string
import sys
import sysconfig
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from examples.mini.vocabulary import SPECIALS
from examples.python_infill.wheels import COPYLEFT, Package, complaint, decode, fetch, read_packages
from gesso.errors import InputError
from gesso.eval.python_infill import MIDDLE, PREFIX, SUFFIX, read_source, source_files
from gesso.eval.task import split_of
from gesso.files import replacing

HELD_OUT_FILES = 500
PACKAGE_BYTES = 1_600_000  # most of one package, held-out files included: none should dominate the corpus
SHORTEST, LONGEST = 200, 60_000  # characters of a document; longer files are split
READ = 400_000  # bytes; larger files were not written by a person
SEEN = 0.7  # a file with a larger share of its lines in earlier files is a copy
SHARED = 0.3  # a file that shares more of its lines with a held-out file, or the reverse, leaks it
STDLIB_LICENSE = "PSF-2.0"

VENDORED = {"_vendor", "vendor", "vendored", "_vendored", "extern", "externals", "third_party", "thirdparty"}
NOT_SOURCE = {"test", "tests", "_tests", "testing", "testdata", "test_data", "migrations", "locale", "node_modules"}
TEST_FILE = re.compile(r"(test_.*|.*_tests?|tests?|conftest)\.py$")
GENERATED_FILE = re.compile(r".*(_pb2|_pb2_grpc|parsetab|lextab|yacctab)\.py$")
GENERATED = re.compile(
    r"do not edit|@generated|auto(matically |-)?generated|^#.*\bgenerated (by|from|with)\b", re.I | re.M
)
HEADER = re.compile(r"copyright|licen[sc]e|spdx|\(c\)|©", re.I)
DATA_LINE = re.compile(r"\s*([-+]?\.?\d|[bru]?['\"]|[\[({])", re.I)

BENCHMARK = re.compile(r"human[_-]?eval|\bmbpp\b", re.I)
# Functions of HumanEval: one may be a coincidence, three are a copy.
ASKED = re.compile(
    r"def (has_close_elements|separate_paren_groups|truncate_number|below_zero|mean_absolute_deviation|intersperse"
    r"|parse_nested_parens|filter_by_substring|sum_product|rolling_max|is_palindrome|make_palindrome|string_xor"
    r"|greatest_common_divisor|all_prefixes|string_sequence|count_distinct_characters|parse_music|how_many_times"
    r"|sort_numbers|find_closest_elements|rescale_to_unit|filter_integers|largest_divisor|flip_case|filter_by_prefix"
    r"|find_zero|sort_third|fizz_buzz|sort_even|encode_cyclic|decode_cyclic|prime_fib|triples_sum_to_zero"
    r"|car_race_collision|incr_list|pairs_sum_to_zero|change_base|triangle_area|fib4|modp|encode_shift|remove_vowels"
    r"|below_threshold|same_chars|correct_bracketing|largest_prime_factor|sum_to_n|fibfib|vowels_count|circular_shift"
    r"|fruit_distribution|strange_sort_list|will_it_fly|smallest_change|is_multiply_prime|is_simple_power|hex_key"
    r"|decimal_to_binary|numerical_letter_grade|anti_shuffle|next_smallest|count_up_to|make_a_pile|move_one_ball"
    r"|get_odd_collatz|special_factorial|file_name_check|words_in_sentence|cycpattern_check|int_to_mini_roman)\("
)
SENTENCES = (
    "any two numbers are closer to each other than given threshold",
    "strings for separate those group into separate strings and return the list",
    "Write a python function to find the minimum number of rotations",
    "Write a function to find the similar elements from the given two tuple lists",
)
MARKERS = (PREFIX, SUFFIX, MIDDLE, *SPECIALS.values())  # a tokenizer would encode them as special tokens


@dataclass(frozen=True, kw_only=True)
class Document:
    text: str
    source: str
    license: str


@dataclass(frozen=True)
class Summary:
    """Counts of kept and dropped files. Bytes are of the text."""

    files: Counter[str] = field(default_factory=Counter)  # by licence
    bytes: Counter[str] = field(default_factory=Counter)  # by "name==version"
    dropped: Counter[str] = field(default_factory=Counter)  # by reason
    held_out: Counter[str] = field(default_factory=Counter)  # files by "name==version"

    def count(self, document: Document) -> None:
        self.files[document.license] += 1
        self.bytes[_package(document)] += len(document.text.encode())


def build(
    out: Path, packages: Path, cache: Path, progress: Callable[[str], None] = print, *, every: int = 1
) -> Summary:
    """Write `python.jsonl.xz` and `python-heldout.jsonl.xz` to `out`. Wheels are kept in `cache`.

    The corpus has the standard library and one in `every` packages.
    """
    listed = read_packages(packages, Package)[::every]
    wheels = fetch(listed, cache, progress)
    wrong = [f"  {p.name}: {says}" for p, wheel in zip(listed, wheels, strict=True) if (says := complaint(p, wheel))]
    if wrong:
        raise InputError(
            "licences that contradict the metadata of the wheels; remove these packages from the list:\n"
            + "\n".join(wrong)
        )
    summary = Summary()
    library, held_out = standard_library(summary.dropped)
    guard = Guard(held_out)
    held: list[Document] = []
    out.mkdir(parents=True, exist_ok=True)
    # Parsing creates millions of objects and no cycles: without garbage collection it takes half the time.
    with _writer(out / "python.jsonl.xz") as write, ProcessPoolExecutor(initializer=gc.disable) as pool:
        sources = itertools.chain([(library, [], Counter[str]())], pool.map(members, listed, wheels))
        for name, (train, other, dropped) in zip(("python", *(p.name for p in listed)), sources, strict=True):
            for document in guard.new(train, summary.dropped):
                write(document)
                summary.count(document)
            held += other
            summary.dropped.update(dropped)
            progress(f"{name}: {summary.bytes.total() / 1e6:.1f} MB in all")
    # Last, because a held-out file must not be a copy of any training file. Sorting by hash mixes the packages.
    held.sort(key=lambda document: hashlib.sha256(document.source.encode()).digest())
    with _writer(out / "python-heldout.jsonl.xz") as write:
        for document in itertools.islice(guard.new(held, Counter()), HELD_OUT_FILES):
            write(document)
            summary.held_out[_package(document)] += 1
    return summary


# --- selection ------------------------------------------------------------------------------------------------------


def members(package: Package, wheel: Path) -> tuple[list[Document], list[Document], Counter[str]]:
    """Return the training documents and the held-out documents of a wheel, and dropped files by reason."""
    train: list[Document] = []
    held: list[Document] = []
    dropped: Counter[str] = Counter()
    room = PACKAGE_BYTES
    label = f"{package.name}=={package.version}"
    with zipfile.ZipFile(wheel) as archive:
        names = [info for info in archive.infolist() if info.filename.endswith(".py")]
        # In random order, so that the size limit drops a fair sample.
        names.sort(key=lambda info: hashlib.sha256(info.filename.encode()).digest())
        for info in names:
            path = info.filename
            reason = "size" if info.file_size > READ else "package too large" if room < 0 else unwanted_path(path)
            if reason:
                dropped[reason] += 1
                continue
            split = split_of(f"{package.name}/{path}")
            found = list(documents(decode(archive.read(info)), f"{label}/{path}", package.license, dropped))
            (train if split == "train" else held).extend(found)
            room -= sum(len(document.text) for document in found)
    train.sort(key=lambda document: document.source)
    return train, held, dropped


def unwanted_path(path: str) -> str | None:
    parts = path.lower().split("/")
    if VENDORED & set(parts):
        return "vendored"
    if NOT_SOURCE & set(parts) or TEST_FILE.match(parts[-1]):
        return "test"
    return "generated" if GENERATED_FILE.match(parts[-1]) else None


def documents(text: str, source: str, license: str, dropped: Counter[str]) -> Iterator[Document]:
    """Yield the file, or the parts of a long one, that are suitable for training."""
    for part in parts(text):
        body = strip_header(part)
        if reason := unwanted(part) or ("size" if len(body) < SHORTEST else None):
            dropped[reason] += 1
        else:
            yield Document(text=body, source=source, license=license)


def parts(text: str) -> list[str]:
    """Split a text that is too long between top-level statements."""
    if len(text) <= LONGEST or (body := _parsed(text)) is None:
        return [text]
    lines = text.splitlines(keepends=True)
    found, begin, last = [], 0, 0
    for node in body:
        end = node.end_lineno or node.lineno
        if last > begin and sum(map(len, lines[begin:end])) > LONGEST:
            found.append("".join(lines[begin:last]))
            begin = last
        last = end
    return [part.strip("\n").rstrip() + "\n" for part in (*found, "".join(lines[begin:]))]


def unwanted(text: str) -> str | None:
    """Return why a text is unsuitable for training, or None. Cheap checks come first."""
    lines = text.splitlines() or [""]
    filled = [line for line in lines if line.strip()]
    head = text[:2000]
    if not SHORTEST <= len(text) <= LONGEST:
        return "size"
    if GENERATED.search(head):
        return "generated"
    if COPYLEFT.search(header(text)):
        return "copyleft header"
    if BENCHMARK.search(text) or len(set(ASKED.findall(text))) >= 3 or any(line in text for line in SENTENCES):
        return "benchmark"
    if any(marker in text for marker in MARKERS):
        return "special tokens"
    if len(text.encode("ascii", "ignore")) < 0.9 * len(text):
        return "not ASCII"
    if sum(len(line) > 200 for line in lines) > 0.01 * len(lines) or max(map(len, lines)) > 1000:
        return "long lines"
    literal = sum(DATA_LINE.match(line) is not None for line in filled)
    if literal > 0.5 * len(filled) or sum(map(text.count, string.digits)) > 0.2 * len(text):
        return "data"
    if (body := _parsed(text)) is None:
        return "does not parse"
    bare = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign, ast.AnnAssign, ast.If, ast.Try)
    imports = sum(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body)
    return "only imports" if all(isinstance(node, bare) for node in body) and 2 * imports >= len(body) else None


def _parsed(text: str) -> list[ast.stmt] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def header(text: str) -> str:
    """Return the comment at the top."""
    lines = text.split("\n")
    return "\n".join(itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), lines))


def strip_header(text: str) -> str:
    """Remove the comment at the top if it is a licence notice."""
    top = header(text)
    return text[len(top) :].lstrip("\n") if HEADER.search(top) else text


# --- held-out files and duplicates ----------------------------------------------------------------------------------


def standard_library(dropped: Counter[str]) -> tuple[list[Document], dict[str, str]]:
    """Return documents of the train split, and the texts of the held-out files by name."""
    label = f"python=={sys.version_info.major}.{sys.version_info.minor}"
    train: list[Document] = []
    held_out: dict[str, str] = {}
    for name, path in source_files((Path(sysconfig.get_path("stdlib")),)).items():
        if (text := read_source(path)) is None:
            continue
        if split_of(name) != "train":
            held_out[name] = text
        elif reason := unwanted_path(name):
            dropped[reason] += 1
        else:
            train += documents(text.strip("\n").rstrip() + "\n", f"{label}/{name}", STDLIB_LICENSE, dropped)
    return train, held_out


def telling_lines(text: str) -> set[str]:
    """Return the lines that identify a file: at least 16 characters, no imports, no rules."""
    lines = {line.strip() for line in text.split("\n")}
    return {line for line in lines if len(line) >= 16 and not line.startswith(("import ", "from ", "# ---", "####"))}


class Guard:
    """Pass each document once, and none that leaks a held-out file."""

    def __init__(self, held_out: Mapping[str, str]) -> None:
        self._texts: set[bytes] = set()
        self._lines: set[int] = set()  # hashes of the telling lines of passed documents
        self._sizes: Counter[str] = Counter()
        self._files_with: dict[str, list[str]] = defaultdict(list)
        for name, text in held_out.items():
            for line in telling_lines(text):
                self._files_with[line].append(name)
        for line, names in list(self._files_with.items()):
            if len(names) > 3:  # too common to identify a file
                del self._files_with[line]
            else:
                self._sizes.update(names)

    def new(self, documents: Iterable[Document], dropped: Counter[str]) -> Iterator[Document]:
        for document in documents:
            if reason := self._seen(document.text):
                dropped[reason] += 1
            else:
                yield document

    def _seen(self, text: str) -> str | None:
        exact = hashlib.sha256("".join(text.split()).encode()).digest()
        if exact in self._texts:
            return "duplicate"
        telling = telling_lines(text)
        shared = Counter(name for line in telling for name in self._files_with.get(line, ()))
        if any(n >= 5 and n > SHARED * min(len(telling), self._sizes[name]) for name, n in shared.items()):
            return "leaks a held-out file"
        hashes = set(map(hash, telling))
        if len(hashes & self._lines) > SEEN * len(hashes):
            return "near duplicate"
        self._texts.add(exact)
        self._lines |= hashes
        return None


# --- files ----------------------------------------------------------------------------------------------------------


def _package(document: Document) -> str:
    return document.source.partition("/")[0]


@contextmanager
def _writer(path: Path) -> Iterator[Callable[[Document], None]]:
    """Write compressed JSON lines. The file appears when it is complete."""
    with replacing(path) as file, lzma.open(file, "wb", preset=9) as rows:

        def write(document: Document) -> None:
            rows.write(json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n")

        yield write

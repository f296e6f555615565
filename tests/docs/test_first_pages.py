"""Every command that a newcomer meets, in the README and the quickstart, runs; or it is listed here with the reason."""

import re

import pytest

from tests.docs.pages import code_blocks, code_spans, link_files, prose
from tests.docs.test_outputs import PROMISE, arguments

PAGES = ("README.md", "docs/quickstart.md")
# Commands that no test runs as they are, and why.
NOT_RUN = {
    "make demo": "installs packages from the network; test_examples.py runs the commands of the demo",
    "make studio": "installs packages from the network; tests/studio runs the studio",
    "make chat": "downloads a checkpoint",
    "make test": "runs this test",
    "make docs": "installs packages from the network; test_site.py builds the site",
    ". .venv/bin/activate": "the environment of the tests is active",
    "pip install .": "installs packages from the network; test_dockerfile.py installs the wheel",
    "pip install 'gesso-lm[serve]'": "installs packages from the network",
    "gesso train --data examples/faq/faq.jsonl": "test_training.py runs it",
    "gesso serve --open": "listens until it is stopped; test_outputs.py starts a server",
    "gesso chat diffusiongemma": "downloads a checkpoint",
    'gesso generate "Once upon a time" -m google/diffusiongemma-26B-A4B-it --quantize fp8': "downloads a checkpoint",
    "gesso eval --data my.jsonl --score contains": "the reader has the rows",
    "gesso tune my.jsonl --out tuned.json": "the reader has the rows",
    "gesso quantize path/to/checkpoint path/to/small --to fp8": "the reader has the checkpoint",
    "gesso quantize NAME path/to/small --to fp8": "the reader has the checkpoint",
}
STDIN = "What can you do?\n"


def commands(page: str) -> list[str]:
    """Return the complete commands on a page: in blocks, and in the text if they have an argument."""
    lines = [line for block in code_blocks(page, "sh") for line in block.splitlines()]
    spans = [
        span
        for span in map(" ".join, map(str.split, code_spans(page)))
        if re.match(r"(gesso \w+ |make |pip |\. )", span)
    ]
    return [line for line in dict.fromkeys([*lines, *spans]) if PROMISE not in line]


def without_comment(line: str) -> str:
    return re.split(r" {2,}# ", line)[0].strip()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs_or_is_listed_with_a_reason(page, main, own_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link_files(tmp_path)
    (tmp_path / "code.py").write_text("def area(width, height):\n    return width * height\n" * 10)
    run = 0
    for line in map(without_comment, commands(page)):
        if line in NOT_RUN:
            continue
        assert line.startswith("gesso "), f"{line!r} is not run and not listed"
        words = arguments(line)
        done = main(*words, stdin=STDIN)
        assert done.code == 0, f"{line}:\n{done.err}"
        run += 1
    assert run, "no command of the page was run"


def test_listed_commands_are_on_a_page():
    shown = {without_comment(line) for page in PAGES for line in commands(page)}
    assert set(NOT_RUN) - shown == set()


def test_the_readme_is_short():
    text = re.sub(r"\]\([^)]*\)", "]", prose("README.md"))
    assert len(text.split()) <= 550


def test_the_readme_says_what_the_verdict_says_of_each_card():
    from gesso.cards.named import CARDS
    from gesso.checkpoint.random_weights import config_of
    from gesso.info.fit import plan
    from gesso.info.verdict import verdict

    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| ([\d.]+ GB) \|$", prose("README.md"), re.MULTILINE)
    assert len(rows) >= 6
    for name, form, download in rows:
        line = verdict("diffusiongemma", plan(config_of("26b-a4b"), CARDS[name]))
        size, _, layers = form.partition(": ")
        assert f": {size}" in line and f"(downloads {download})" in line, line
        assert not layers or re.search(r"experts of \d+ layers", layers)[0] in line, line

"""Commands and requests on the pages give the output that a comment after them promises.

`# prints TEXT` after a command is its whole output, with line breaks as spaces. `# the answer has TEXT` after a request
is a part of the server's answer.
"""

import json
import re
import shlex
import subprocess

import pytest

from gesso.files import read_text
from tests.docs.pages import code_blocks, link_files, pages
from tests.docs.test_code import matches
from tests.serving import serving

PROMISE = "  # prints "
CURL = re.compile(
    r"^curl (?:http://)?[\w.]+:8000(?P<path>\S+) -H 'Content-Type: application/json' \\\n +-d '(?P<body>[^']+)'\n"
    r"(?:# the answer has (?P<text>.+)\n)?",
    re.MULTILINE,
)


def lines(page: str) -> list[str]:
    return [line for block in code_blocks(page, "sh") for line in block.splitlines()]


def arguments(line: str) -> list[str]:
    """Return the arguments of a `gesso` command. In bash, $'...' is a string with escapes."""
    words = shlex.split(line)[1:]
    return [word[1:].encode().decode("unicode_escape") if word.startswith("$") else word for word in words]


def test_every_command_with_a_seed_promises_its_output():
    seeded = [line for page in pages() for line in lines(page) if line.startswith("gesso ") and " --seed " in line]
    assert len(seeded) >= 7
    assert [line for line in seeded if PROMISE not in line] == []


@pytest.mark.parametrize("page", [page for page in pages() if any(PROMISE in line for line in lines(page))])
def test_a_command_on_a_page_prints_what_the_page_says(page, main, own_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link_files(tmp_path)
    for line in lines(page):
        if line.startswith(("echo ", "printf ")) and " > " in line:  # writes a file that a command reads
            subprocess.run(["bash", "-c", line], check=True)
        if PROMISE in line:
            command, _, promised = line.partition(PROMISE)
            command, _, file = command.strip().partition(" < ")
            done = main(*arguments(command), stdin=read_text(file) if file else "")
            assert done.code == 0 and matches(" ".join(done.out.split()), promised), f"{line}:\n{done}"


def test_requests_on_the_pages_have_the_answers_that_the_pages_say(own_cache, tmp_path):
    # tests/serve/test_adapters.py loads adapters, and test_images.py sends images. One guide trains its model.
    others = "lora_adapter", "image_url", '"model": "verbs"'
    found = (block for page in pages() for block in code_blocks(page, "sh"))
    blocks = [block for block in found if not any(word in block for word in others)]
    requests = [found for block in blocks for found in CURL.finditer(block)]
    assert len(requests) == sum(block.count("curl ") for block in blocks) >= 6
    with serving(tmp_path / "log", "--name", "gesso") as server:
        server.wait_ready()
        earlier = server.http.post("/v1/responses", json={"input": "Hello", "seed": 1}).json()["id"]
        for found in requests:
            assert found["text"], f"{found[0]} does not say what the answer has"
            body = json.loads(found["body"].replace("resp_...", earlier))
            answer = server.http.post(found["path"], json=body)
            assert answer.status_code == 200, found[0]
            compact = json.dumps(answer.json(), separators=(",", ":"), ensure_ascii=False)
            assert found["text"] in compact, f"{found[0]} gives {compact}"

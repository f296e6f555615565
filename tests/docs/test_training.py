"""The first example of the fine-tuning guide runs, in fewer steps, and prints the commands that the guide shows."""

import json

from gesso.cli import train_summary
from gesso.train import learned
from tests.docs.pages import ROOT, code_blocks, link_files, text_of

PAGE = "docs/guides/fine-tuning.md"


def test_the_guide_goes_from_rows_to_an_adapter_that_answers(main, own_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link_files(tmp_path)
    train, chat, serve = code_blocks(PAGE, "sh")[0].splitlines()
    monkeypatch.setattr(train_summary, "USEFUL", 0.0)  # one step teaches nothing
    monkeypatch.setattr(learned, "TRIED", 2)  # forty answers take as long as the rest of the test
    done = main(*train.split()[1:], "--steps", "1")
    assert done.code == 0, done.err
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert (lines["chat"], lines["serve"]) == (chat, serve)
    for chosen in code_blocks(PAGE, "")[0].splitlines()[:3]:  # the others depend on the number of steps
        assert chosen in done.err
    answer = main(*chat.split()[1:], "--json", "--max-new-tokens", "8", stdin="When are you open?\n")
    assert answer.code == 0 and "text" in json.loads(answer.out)


def test_the_rows_of_the_example_are_fifty_different_questions():
    rows = [json.loads(line) for line in (ROOT / "examples/faq/faq.jsonl").read_text().splitlines()]
    answers = {row["messages"][0]["content"]: row["messages"][1]["content"] for row in rows}
    assert len(answers) == len(rows) == 50
    rephrased = [
        json.loads(line)["messages"] for line in (ROOT / "examples/faq/rephrased.jsonl").read_text().splitlines()
    ]
    assert all(question["content"] not in answers for question, _ in rephrased)
    assert {answer["content"] for _, answer in rephrased} <= set(answers.values())


def test_the_data_sets_of_the_guide_have_the_rows_that_it_says():
    folder = ROOT / "examples/first_training"
    counts = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.jsonl")}
    assert counts == {
        "museum.jsonl": 20, "orders.jsonl": 60, "tone.jsonl": 200, "cards.jsonl": 40, "museum_paraphrased.jsonl": 100,
    }  # fmt: skip
    page = text_of(PAGE)
    assert all(f"`{name}`" in page for name in counts)

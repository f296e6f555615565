"""lm-eval: three types of tasks over local files. Of these, lm-eval sends only generation tasks to chat completions."""

import json
import re
import tempfile
from pathlib import Path

import lm_eval
from checks import MODEL, run
from lm_eval.tasks import TaskManager

CODE = [
    {"question": "def add(a, b):\n    return ", "choices": ["a + b", "import os"], "label": 0},
    {"question": "for i in range(10):\n    ", "choices": ["class:", "print(i)"], "label": 1},
]
QUESTIONS = [{"question": "Who are you?", "answer": "Gesso"}]
TEXTS = [{"text": "def add(a, b):\n    return a + b\n"}, {"text": "+ b(a b\n,return)\n  def : a add"}]
GENERATION = """
output_type: generate_until
doc_to_text: "<bos>{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 32}
metric_list: [{metric: exact_match}]
"""
CHAT_GENERATION = """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 64}
metric_list: [{metric: exact_match}]
"""
CHOICE = """
output_type: multiple_choice
doc_to_text: "<bos>{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
"""
PERPLEXITY = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""


def evaluate(url, model, path, rows, task, **options):
    """Return the samples of a task, in the order of its rows."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\n"
        (Path(directory) / "local.yaml").write_text(f"task: local\n{data}{task}")
        results = lm_eval.simple_evaluate(
            model=model,
            model_args={"model": MODEL, "base_url": f"{url}{path}", "max_length": 1024},
            tasks=["local"],
            # lm-eval's own tasks are thousands of files, which take minutes to read.
            task_manager=TaskManager(include_path=directory, include_defaults=False),
            **options,
        )
    samples = sorted(results["samples"]["local"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(rows)
    return samples


def completions(url, rows, task):
    return evaluate(url, "local-completions", "/v1/completions", rows, task)


def generation(url):
    texts = [sample["filtered_resps"][0] for sample in completions(url, CODE, GENERATION)]
    assert all(text.strip() and "\n" not in text for text in texts), texts


def multiple_choice(url):
    for sample in completions(url, CODE, CHOICE):
        likelihoods = [likelihood for likelihood, _ in sample["filtered_resps"]]
        assert max(likelihoods) < 0 and sample["acc"] == 1, likelihoods


def perplexity(url):
    code, mixed = (sample["filtered_resps"][0] for sample in completions(url, TEXTS, PERPLEXITY))
    assert mixed < code < 0, (code, mixed)


def chat_generation(url):
    chat = {"apply_chat_template": True}
    (sample,) = evaluate(url, "local-chat-completions", "/v1/chat/completions", QUESTIONS, CHAT_GENERATION, **chat)
    assert re.search("gesso", sample["filtered_resps"][0], re.IGNORECASE), sample["filtered_resps"]


run(generation, multiple_choice, perplexity, chat_generation)

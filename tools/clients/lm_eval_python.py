"""lm-eval: a generation task and a multiple-choice task over local files."""

import json
import tempfile
from pathlib import Path

import lm_eval
from checks import MODEL, run
from lm_eval.tasks import TaskManager

BUNDLED = Path(__file__).parents[2] / "gesso" / "bundled" / MODEL
ROWS = [
    {"question": "def add(a, b):\n    return ", "choices": ["a + b", "import os"], "label": 0},
    {"question": "for i in range(10):\n    ", "choices": ["class:", "print(i)"], "label": 1},
]
GENERATION = """
task: local_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "<bos>{{{{question}}}}"
doc_to_target: "{{{{choices[label]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 32}}
metric_list: [{{metric: exact_match}}]
"""
CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "<bos>{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def evaluate(url, task, name):
    with tempfile.TemporaryDirectory() as directory:
        rows = Path(directory) / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        (Path(directory) / f"{name}.yaml").write_text(task.format(rows=rows))
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": MODEL,
                "base_url": f"{url}/v1/completions",
                "tokenizer_backend": "huggingface",
                "tokenizer": str(BUNDLED),
                "max_length": 1024,
            },
            tasks=[name],
            task_manager=TaskManager(include_path=directory),
        )
    samples = found["samples"][name]
    assert len(samples) == len(ROWS)
    return samples


def generation(url):
    evaluate(url, GENERATION, "local_generation")


def multiple_choice(url):
    for sample in evaluate(url, CHOICE, "local_choice"):
        likelihoods = [likelihood for likelihood, _ in sample["filtered_resps"]]
        assert len(likelihoods) == 2 and max(likelihoods) < 0 and likelihoods[0] != likelihoods[1], likelihoods


run(generation, multiple_choice)

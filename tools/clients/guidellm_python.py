"""guidellm: a short synchronous benchmark in which no request fails."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, run

BUNDLED = Path(__file__).parents[2] / "gesso" / "bundled" / MODEL


def benchmark(url):
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
            *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=3"),
            *("--tokenizer", f"kind=huggingface_auto,model={BUNDLED}"),
            *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=32"),
            *("--output", f"kind=json,path={directory}/report.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=directory)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
        report = json.loads(next(Path(directory).glob("*.json")).read_text())
    requests = report["benchmarks"][0]["requests"]
    assert len(requests["successful"]) == 3 and not requests["errored"], requests["errored"]


run(benchmark)

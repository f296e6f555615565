"""inspect-ai: a task with a scorer."""

import tempfile

from checks import KEY, MODEL, QUESTION, run
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


def task(url):
    model = get_model(f"openai/{MODEL}", base_url=f"{url}/v1", api_key=KEY, responses_api=False)
    samples = Task(dataset=[Sample(input=QUESTION, target="a")], solver=generate(), scorer=includes())
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(samples, model=model, display="none", log_format="json", log_dir=logs)
    assert log.status == "success", log.error


run(task)

"""Steps with adapters beside steps without."""

import json
from io import StringIO

from rich.console import Console

from benchmarks import adapters
from gesso.engine.engine import Engine


def test_requests_take_the_adapters_in_turn(capsys, tiny_directory, monkeypatch):
    submitted = []

    def submit(engine, request, real=Engine.submit):
        submitted.append(request.adapter)
        return real(engine, request)

    monkeypatch.setattr(Engine, "submit", submit)
    small = ("-m", str(tiny_directory), "--device", "cpu", "--batches", "3", "--prompt", "9", "--new", "4")
    adapters.main([*small, "--adapters", "2", "--rank", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert submitted[-3:] == ["random-0", "random-1", "random-0"] and None in submitted
    assert (found["adapters"], found["rank"]) == (2, 4) and found["batches"][0]["adapted_ms_per_step"] > 0
    adapters.render(found, Console(file=(shown := StringIO()), width=100))
    assert "with 2 adapters of rank 4" in shown.getvalue()

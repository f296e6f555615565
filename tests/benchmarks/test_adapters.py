"""Steps with adapters beside steps without."""

import json
from io import StringIO

from rich.console import Console

from benchmarks import adapters


def test_requests_take_the_adapters_in_turn(capsys, tiny_directory, submitted):
    small = ("-m", str(tiny_directory), "--device", "cpu", "--batches", "3", "--prompt", "9", "--new", "4")
    adapters.main([*small, "--adapters", "2", "--rank", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    used = [request.adapter for request in submitted]
    assert used[-3:] == ["random-0", "random-1", "random-0"] and None in used
    assert (found["adapters"], found["rank"]) == (2, 4) and found["batches"][0]["adapted_ms_per_step"] > 0
    adapters.render(found, Console(file=(shown := StringIO()), width=100))
    assert "with 2 adapters of rank 4" in shown.getvalue()

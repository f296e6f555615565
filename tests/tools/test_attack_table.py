"""The table of attacks is readable when its output is piped."""

from typing import Any

from tools.load import under_attack
from tools.load.__main__ import console
from tools.load.attack_table import ATTACKS

BYSTANDER = {"answers": 12, "errors": {"503": 1}, "wrong_texts": 0, "p99": 1.25}


def row(letter: str, attack: str, **more: Any) -> dict[str, Any]:
    return {
        "letter": letter, "attack": attack, "statuses": {"200": 20, "400": 38, "timeout": 2}, "longest_answer": 12.5,
        "bystander": BYSTANDER, "p99_ratio": 1.5, "health_longest": 0.25, "health_failed": 3, "server_peak_mb": 1234,
        "processes_peak_mb": 2345, "processes_left": 0, "answer_after": 0.5, "notes": ["x" * 80],
    } | more  # fmt: skip


def test_piped_table_shortens_no_cell(capsys):
    rows = [row(attack.letter, attack.name) for attack in ATTACKS]
    alone = {key: value for key, value in row("g2", "killed server").items() if key != "bystander"}
    skipped = {"letter": "l", "attack": "unreadable model", "skipped": "y" * 80}
    under_attack.render({"alone": {}, "attacks": [*rows, alone, skipped]}, console())
    lines = capsys.readouterr().out.splitlines()
    assert not any("…" in line for line in lines)
    for attack in ATTACKS:
        (line, *_) = (line for line in lines if f" {attack.name} " in line)
        assert "20x 200, 38x 400, 2x timeout" in line and "0.25 (3 failed)" in line
    assert any("x" * 80 in line for line in lines) and any("y" * 80 in line for line in lines)

"""The attacks with the outcome expected of a server that withstands them."""

from dataclasses import dataclass

from tools.load import attacks
from tools.load.target import Run

FILES = 256  # that the server of `incomplete_heads` may open: fewer than its connections


@dataclass(frozen=True)
class Attack:
    letter: str
    run: Run
    expected: str
    constrained: bool = False  # the bystander's requests have a constraint
    own_server: bool = False  # needs a server started for it: its process id, or the settings below
    keys: tuple[str, ...] = ("good", "bad")
    frame_bytes: int | None = None
    files: int | None = None
    broken: bool = False  # the server gets a checkpoint that does not load
    alone: bool = False  # without a bystander, because the server ends
    seconds: float = 25.0  # for the attack and the time after it

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", " ")


ATTACKS = (
    Attack("a", attacks.many_tools, "400 or 413"),
    Attack("b", attacks.overflowing_temperature, "400; no 500 for others"),
    Attack("c1", attacks.abandoned_tools, "nothing is left running"),
    Attack("c2", attacks.abandoned_schemas, "nothing is left running", constrained=True),
    Attack("d", attacks.many_errors, "400 with one message, little memory"),
    Attack("e", attacks.long_canvas, "400"),
    Attack("f", attacks.incomplete_heads, "closed; others are served; little log", own_server=True, files=FILES),
    Attack("g1", attacks.abandoned_regexes, "compilers end when their clients leave", constrained=True),
    Attack("g2", attacks.killed_server, "no survivors", own_server=True, alone=True),
    Attack("g3", attacks.hostile_constraints, "200, 400, or 500 for an invalid answer; others continue", seconds=75),
    Attack("g4", attacks.harmless_constraints, "200; the yardstick for g3"),
    Attack("h", attacks.scored_candidates, "200, 400, or 500 for an invalid answer; others continue", seconds=75),
    Attack("i", attacks.long_texts, "400, before it reaches the engine"),
    Attack("j", attacks.long_message, "200 or an error; /ready is correct", own_server=True, frame_bytes=16_384),
    Attack("k", attacks.stopped_engine, "503, then 200 by another engine", own_server=True),
    Attack("l", attacks.unreadable_model, "the server exits with the reason", own_server=True, broken=True, alone=True),
    Attack("low", attacks.vanishing_temperature, "400, or 200 with JSON"),
    Attack("low", attacks.starred_grammar, "400", constrained=True),
    Attack("low", attacks.forged_address, "ignored", own_server=True, keys=()),
    Attack(
        "low",
        attacks.non_ascii_key,
        "200, or refused at the start",
        own_server=True,
        keys=("good", "bad", attacks.UMLAUT_KEY),
    ),
    Attack("low", attacks.deep_json, "200 or 400"),
    Attack("low", attacks.long_integers, "400"),
)


def chosen(letters: str | None) -> list[Attack]:
    """Return the attacks with the given comma-separated letters, or all. `c` selects c1 and c2."""
    if letters is None:
        return list(ATTACKS)
    wanted = letters.split(",")
    return [attack for attack in ATTACKS if attack.letter in wanted or attack.letter.rstrip("12") in wanted]

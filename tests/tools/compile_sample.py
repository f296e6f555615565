"""Compile a few launches of the bundled model for an RTX 5090. Run by test_cards.py, without Triton's interpreter."""

import sys

from gesso.cards.named import CARDS
from tools.cards.compile import compile_launch
from tools.cards.launches import MODELS, record

SAMPLE = {"rows._join", "advance._judge", "linear._product"}

card = CARDS["rtx-5090"]
kernels = {launch.kernel: launch for launch in record(card, MODELS[-1:]).launches}
for name in sorted(SAMPLE):
    compiled = compile_launch(kernels[name], card)
    assert not compiled.error and compiled.registers, (name, compiled)
assert compile_launch(kernels["linear._product"], CARDS["rtx-5090"]).copies
sys.stdout.write("compiled")

"""Texts that a compiled constraint accepts, drawn at random without a model."""

import random

import numpy as np

from gesso.constraints.automaton import DEAD, START
from gesso.constraints.guide import Guide

PLAIN = np.frombuffer(b" 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)
LENGTH = 400  # bytes after which a text heads for its nearest end
STOP = 0.1  # probability to end a text where it may end


def accepts(guide: Guide, text: str) -> bool:
    """Return whether a constraint accepts a whole text."""
    state = guide.automaton.walk(START, text.encode())
    return bool(guide.automaton.accepting_S[state])


def random_text(guide: Guide, rng: random.Random, length: int = LENGTH) -> str:
    """Return the text of a random walk through the automaton that heads for the nearest end after `length` bytes.

    A step chooses among the states that can follow, and then a byte that leads there. If bytes were drawn directly, a
    string would hardly ever end: one byte of many is its quote.
    """
    automaton, state, text = guide.automaton, START, bytearray()
    length = rng.randint(1, length)
    while True:
        row_B = automaton.row(state)
        targets = np.unique(row_B[row_B != DEAD])
        may_end = bool(automaton.accepting_S[state])
        if may_end and (not len(targets) or len(text) >= length or rng.random() < STOP):
            return text.decode()
        if len(text) >= length:
            left = automaton.bytes_left_S[targets]
            targets = targets[left == left.min()]
        state = int(targets[rng.randrange(len(targets))])
        bytes_ = np.flatnonzero(row_B == state)
        plain = np.intersect1d(bytes_, PLAIN)
        if len(plain) and rng.random() < 0.5:  # so that patterns and keys see ordinary text, too
            bytes_ = plain
        text.append(int(bytes_[rng.randrange(len(bytes_))]))

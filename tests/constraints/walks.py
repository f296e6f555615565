"""Test which texts belong to a term, and sample texts by random walks."""

import random

from gesso.constraints.term import FAR, Term


def has(term: Term, text: str | bytes) -> bool:
    for byte in text.encode() if isinstance(text, str) else text:
        term = term.after(byte)
    return term.nullable


def sample(term: Term, rng: random.Random, length: int = 40) -> bytes:
    """Return the text of a random walk that heads for the nearest end after at most `length` bytes."""
    text, stop = bytearray(), rng.randint(1, length)
    while True:
        moves = [(mask, term.after((mask & -mask).bit_length() - 1)) for mask in term.masks]
        moves = sorted(((mask, after) for mask, after in moves if after.least < FAR), key=lambda move: move[0])
        if term.nullable and (not moves or len(text) >= stop or rng.random() < 0.1):
            return bytes(text)
        if len(text) >= stop:
            moves = [move for move in moves if move[1].least == min(after.least for _, after in moves)]
        mask, term = rng.choice(moves)
        text.append(rng.choice([byte for byte in range(256) if mask >> byte & 1]))

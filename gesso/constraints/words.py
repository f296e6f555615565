"""The vocabulary as byte strings. V tokens, L bytes of the longest word that is a candidate.

A word is the text of a token in bytes. Candidates are the words that a search may choose.
"""

import bisect
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.automaton import DEAD, PLAIN, STAY, Automaton

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LAST_BYTE = 0xF7  # of any text in UTF-8
FEW_LEFT = 32
LONGEST = 20  # bytes of a candidate; shorter tokens can write the text of a longer one


class Words:
    def __init__(self, bytes_of: Mapping[int, bytes], vocab_size: int) -> None:
        """Index the tokens that write text, given by `bytes_of`. If several write the same bytes, the first is used.

        Words longer than `LONGEST` are valid in a text, but never candidates.
        """
        self.bytes_of = bytes_of
        self.vocab_size = vocab_size
        self.token_of: dict[bytes, int] = {}
        for token, word in bytes_of.items():
            if len(word) <= LONGEST:
                self.token_of.setdefault(word, token)
        self._sorted = sorted(self.token_of)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, named: Mapping[int, int] = MappingProxyType({})) -> "Words":
        """Return the words of a tokenizer. Special tokens have none, except that those in `named` write a byte > 0xF7.

        Tokens of single bytes come last, so that another token with the same text is the candidate. Byte tokens are
        rare in training data, so the model would give every "2" and every "q" a very low probability.
        """
        bytes_of: dict[int, bytes] = {}
        byte_tokens: dict[int, bytes] = {}
        for token, text in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
            if token in tokenizer.special_ids:
                if token in named:
                    bytes_of[token] = bytes([named[token]])
            elif byte_token := BYTE.fullmatch(text):
                byte = int(byte_token[1], 16)
                if byte <= LAST_BYTE:
                    byte_tokens[token] = bytes([byte])
            elif word := text.encode():
                (byte_tokens if token in tokenizer.byte_ids else bytes_of)[token] = word
        return cls({**bytes_of, **byte_tokens}, vocab_size)

    def warm_up(self) -> None:
        """Build the tables of searches now instead of with the first search."""
        _ = self.bytes_VL, self.length_V, self.plain_V

    @cached_property
    def bytes_VL(self) -> NDArray[np.int64]:
        """The bytes of every token, padded with STAY."""
        bytes_VL = np.full((self.vocab_size, LONGEST), STAY, np.int64)
        tokens, words = zip(*self._short(), strict=True)
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        ends = np.repeat(lengths.cumsum(), lengths)
        joined = np.frombuffer(b"".join(words), np.uint8)
        places = np.arange(len(joined)) - ends + np.repeat(lengths, lengths)
        bytes_VL[np.repeat(tokens, lengths), places] = joined
        return bytes_VL

    @cached_property
    def length_V(self) -> NDArray[np.int16]:
        """The length in bytes; 0 for tokens without text and for long words."""
        return (self.bytes_VL != STAY).sum(axis=1, dtype=np.int16)

    @cached_property
    def plain_V(self) -> NDArray[np.bool_]:
        """Whether a word consists of plain bytes only."""
        plain_VL = np.isin(self.bytes_VL, [*PLAIN, STAY])
        return np.asarray(plain_VL.all(axis=1) & (self.length_V > 0))

    @cached_property
    def writes_all_bytes(self) -> bool:
        """Whether any text can be written byte by byte."""
        return all(bytes([byte]) in self.token_of for byte in range(LAST_BYTE + 1) if byte not in (0xC0, 0xC1))

    def _short(self) -> Iterator[tuple[int, bytes]]:
        return ((token, word) for token, word in self.bytes_of.items() if len(word) <= LONGEST)

    def after(self, automaton: Automaton, state: int, limit: int) -> list[tuple[int, int]] | None:
        """Return (token, next state) of every candidate that can follow a state; None if more than `limit` can."""
        allowed = automaton.row(state).nonzero()[0].tolist()
        if sum(bytes([byte]) in self.token_of for byte in allowed) > limit:  # faster than walking all words
            return None
        followers: list[tuple[int, int]] = []
        for word, target in self._walk(automaton, state):
            followers.append((self.token_of[word], target))
            if len(followers) > limit:
                return None
        return followers

    def targets(self, automaton: Automaton, state: int) -> list[tuple[int, int]]:
        """Return (token, next state), with one candidate for each state that some candidate reaches."""
        token_to: dict[int, int] = {}  # token by next state
        token = self._candidates  # the words that have bytes left
        at = np.full(len(token), state)  # the state that each of them has reached
        for place in range(LONGEST + 1):
            byte = self.bytes_VL[token, place] if place < LONGEST else np.full(len(token), STAY)
            ended = byte == STAY
            for target, first in zip(*np.unique(at[ended], return_index=True), strict=True):
                token_to.setdefault(int(target), int(token[ended][first]))
            token, at = token[~ended], at[~ended]
            automaton.fill(at)
            at = automaton.next_SB[at, byte[~ended]].astype(np.int64)
            token, at = token[at != DEAD], at[at != DEAD]
            if not len(token):
                break
        return [(token, target) for target, token in token_to.items()]

    @cached_property
    def _candidates(self) -> NDArray[np.int64]:
        return np.array(list(self.token_of.values()), np.int64)

    def _walk(self, automaton: Automaton, state: int) -> Iterator[tuple[bytes, int]]:
        """Walk the sorted words byte by byte, as a trie. Where few are left, walk each of them to its end."""
        pending = [(0, state, 0, len(self._sorted))]  # words low:high share their first `read` bytes
        while pending:
            read, at, low, high = pending.pop()
            if high - low <= FEW_LEFT:
                for word in self._sorted[low:high]:
                    if (target := automaton.walk(at, word[read:])) != DEAD:
                        yield word, target
                continue
            if len(self._sorted[low]) == read:
                yield self._sorted[low], at
                low += 1
            prefix = self._sorted[low][:read]
            row = automaton.row(at)
            for byte in row.nonzero()[0].tolist():
                first = bisect.bisect_left(self._sorted, prefix + bytes([byte]), low, high)
                last = bisect.bisect_left(self._sorted, prefix + bytes([byte + 1]), first, high) if byte < 255 else high
                if first < last:
                    pending.append((read + 1, int(row[byte]), first, last))

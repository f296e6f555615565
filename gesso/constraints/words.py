"""The vocabulary as byte strings: what each token adds to a text. V tokens, L bytes of the longest word considered."""

import bisect
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.automaton import DEAD, STAY, Automaton

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PLAIN = b" 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # what most words are made of
LAST_BYTE = 0xF7  # of any text in UTF-8
FEW_LEFT = 32
LONGEST = 20  # bytes of a word to choose from; a longer token can be written by shorter ones


class Words:
    def __init__(self, bytes_of: Mapping[int, bytes], vocab_size: int) -> None:
        """`bytes_of` those tokens that write text. Of several that write the same the first is a word to choose from.

        Long ones are none: a text may have them, but a search would not find them.
        """
        self.bytes_of, self.vocab_size = bytes_of, vocab_size
        self.token_of: dict[bytes, int] = {}
        for token, word in bytes_of.items():
            if len(word) <= LONGEST:
                self.token_of.setdefault(word, token)
        self._sorted = sorted(self.token_of)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, named: Mapping[int, int] = MappingProxyType({})) -> "Words":
        """Special tokens are no words, but for those in `named`: each writes the byte it maps to, above 0xF7.

        Last come the tokens of single bytes. Where there is a piece that writes the same, a model has hardly ever seen
        the byte: considered in its place, it would make every "2" and every "q" as unlikely as can be.
        """
        bytes_of: dict[int, bytes] = {}
        bytes_alone: dict[int, bytes] = {}
        for token, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
            if token in tokenizer.special_ids:
                if token in named:
                    bytes_of[token] = bytes([named[token]])
            elif found := BYTE.fullmatch(piece):
                if (byte := int(found[1], 16)) <= LAST_BYTE:
                    bytes_alone[token] = bytes([byte])
            elif word := piece.encode():
                (bytes_alone if token in tokenizer.byte_ids else bytes_of)[token] = word
        return cls({**bytes_of, **bytes_alone}, vocab_size)

    @cached_property
    def bytes_VL(self) -> NDArray[np.int64]:
        """The bytes of every token, then STAY."""
        found_VL = np.full((self.vocab_size, LONGEST), STAY, np.int64)
        for token, word in self._short():
            found_VL[token, : len(word)] = np.frombuffer(word, np.uint8)
        return found_VL

    @cached_property
    def length_V(self) -> NDArray[np.int16]:
        """In bytes; 0 for what is no word, or a long one."""
        length_V = np.zeros(self.vocab_size, np.int16)
        for token, word in self._short():
            length_V[token] = len(word)
        return length_V

    @cached_property
    def plain_V(self) -> NDArray[np.bool_]:
        """The words of plain bytes only."""
        plain_V = np.zeros(self.vocab_size, np.bool_)
        plain_V[[token for token, word in self._short() if not word.strip(PLAIN)]] = True
        return plain_V

    def _short(self) -> Iterator[tuple[int, bytes]]:
        return ((token, word) for token, word in self.bytes_of.items() if len(word) <= LONGEST)

    def after(self, automaton: Automaton, state: int, limit: int) -> list[tuple[int, int]] | None:
        """(token, next state) of every word that can follow; None when there are more than `limit`."""
        allowed = automaton.next_SB[state, :STAY].nonzero()[0].tolist()
        if sum(bytes([byte]) in self.token_of for byte in allowed) > limit:  # quicker than to walk them all
            return None
        found: list[tuple[int, int]] = []
        for word, target in self._walk(automaton, state):
            found.append((self.token_of[word], target))
            if len(found) > limit:
                return None
        return found

    def targets(self, automaton: Automaton, state: int) -> list[tuple[int, int]]:
        """(token, next state) of one word for each state that a word leads to."""
        found: dict[int, int] = {}
        token, at = self._each_V, np.full(len(self._each_V), state)  # of the words that go on
        for place in range(LONGEST + 1):
            byte = self.bytes_VL[token, place] if place < LONGEST else np.full(len(token), STAY)
            ended = byte == STAY
            for target, first in zip(*np.unique(at[ended], return_index=True), strict=True):
                found.setdefault(int(target), int(token[ended][first]))
            token, at = token[~ended], automaton.next_SB[at[~ended], byte[~ended]]
            token, at = token[at != DEAD], at[at != DEAD]
            if not len(token):
                break
        return [(token, target) for target, token in found.items()]

    @cached_property
    def _each_V(self) -> NDArray[np.int64]:
        return np.array(list(self.token_of.values()), np.int64)

    def _walk(self, automaton: Automaton, state: int) -> Iterator[tuple[bytes, int]]:
        """Through the sorted words byte by byte, as far as the automaton goes; where few are left, each by itself."""
        pending = [(0, state, 0, len(self._sorted))]  # so many bytes are read; words from here to there begin with them
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
            for byte in automaton.next_SB[at, :STAY].nonzero()[0].tolist():
                first = bisect.bisect_left(self._sorted, prefix + bytes([byte]), low, high)
                last = bisect.bisect_left(self._sorted, prefix + bytes([byte + 1]), first, high) if byte < 255 else high
                if first < last:
                    pending.append((read + 1, int(automaton.next_SB[at, byte]), first, last))

"""Reference for scoring: log-probabilities of texts by the causal encoder, one text at a time and without an engine.

S tokens, H hidden, R rows of a chunk.
"""

from collections.abc import Sequence

import torch

from gesso.model.transformer import DiffusionGemma

ROWS = 64  # positions whose logits are computed at once


class Likelihood:
    """Log-probabilities of texts after one prompt. Prompt and texts are read in pieces of `piece` tokens."""

    @torch.no_grad()
    def __init__(self, model: DiffusionGemma, prompt: Sequence[int], piece: int = 256) -> None:
        self.model, self.length, self.piece = model, len(prompt), piece
        self.cache = model.new_cache(1, len(prompt))
        ids_1S = torch.tensor([list(prompt)], device=model.device)
        for ids_1P in ids_1S.split(piece, dim=1):
            self.last_1H = model.encode(ids_1P, self.cache)[0, -1:]
        self.cache.save(0, self.cache.lengths[0])  # the state to return to for each text

    @torch.no_grad()
    def of(self, text: Sequence[int]) -> float:
        """Return the log-probability of a text in nats, the sum over its tokens."""
        target_S = torch.tensor(list(text), device=self.model.device)
        hidden_SH = [self.last_1H]
        self.cache.grow(0, self.length + len(text))
        for ids_P in target_S[:-1].split(self.piece) if len(text) > 1 else ():
            hidden_SH.append(self.model.encode(ids_P[None], self.cache)[0])
        self.cache.cut(0, self.length)
        total = 0.0
        for hidden_RH, target_R in zip(torch.cat(hidden_SH).split(ROWS), target_S.split(ROWS), strict=True):
            log_probability_RV = self.model.logits(hidden_RH).log_softmax(-1)
            total += log_probability_RV.gather(-1, target_R[:, None]).sum().item()
        return total

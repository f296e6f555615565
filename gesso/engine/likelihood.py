"""How likely a text is, as the causal encoder sees it. S tokens, H hidden, R rows of a chunk, V vocabulary."""

from collections.abc import Sequence

import torch

from gesso.model.transformer import DiffusionGemma

PIECE = 256  # tokens read at once
ROWS = 64  # positions whose logits are in memory at once


class Likelihood:
    """Of texts that all begin alike: the beginning is read once."""

    @torch.no_grad()
    def __init__(self, model: DiffusionGemma, beginning: Sequence[int]) -> None:
        self.model, self.length = model, len(beginning)
        self.cache = model.new_cache(1, len(beginning))
        ids_1S = torch.tensor([list(beginning)], device=model.device)
        for ids_1P in ids_1S.split(PIECE, dim=1):
            self.last_1H = model.encode(ids_1P, self.cache)[0, -1:]
        self.cache.save(0)  # to come back to for each text

    @torch.no_grad()
    def of(self, text: Sequence[int]) -> float:
        """The log-probability of the tokens of a text after the beginning, in nats: their sum, not their mean."""
        if not text:
            return 0.0
        target_S = torch.tensor(list(text), device=self.model.device)
        hidden_SH = [self.last_1H]
        self.cache.grow(0, self.length + len(text))
        for ids_P in target_S[:-1].split(PIECE) if len(text) > 1 else ():
            hidden_SH.append(self.model.encode(ids_P[None], self.cache)[0])
        self.cache.cut(0, self.length)
        total = 0.0
        for hidden_RH, target_R in zip(torch.cat(hidden_SH).split(ROWS), target_S.split(ROWS), strict=True):
            log_probability_RV = self.model.logits(hidden_RH).log_softmax(-1)
            total += log_probability_RV.gather(-1, target_R[:, None]).sum().item()
        return total

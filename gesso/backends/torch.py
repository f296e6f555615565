"""The torch backend: the plain model, one piece after another.

Pieces never share an operation, so the result of one cannot depend on the others: a GEMM library picks its blocking,
and with it the order of additions, by the number of rows.

T tokens of all canvases, P patches of an image, D values of a patch, R rows of a chunk, V vocabulary, H hidden. Only
[R, V] logits exist at any time.
"""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gesso.adapters.sites import adapter_sites, kept_active, switch
from gesso.backends.base import Counts, Piece, Replayed, Work
from gesso.diffusion.hash import draw
from gesso.diffusion.noise import Draws
from gesso.diffusion.prediction import LIKELY, Prediction, argmax, top_tokens
from gesso.diffusion.truncation import draw_within
from gesso.images.image import Image
from gesso.model.attention import AttendWithCache, attend_with_cache
from gesso.model.cache import KVCache
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion

CHUNK_BYTES = 64 * 2**20  # of float32 logits held at once
# Of a logit minus the largest: the probability, e^-64, is below the rounding of all others. Without a bound there would
# be probabilities below 2^-126, with which a product on a CPU takes up to a hundred times as long.
LEAST = -64.0
ARM = platform.machine() in ("aarch64", "arm64")


class TorchBackend:
    """Runs the plain model."""

    captures = False
    counts = Counts()
    chunk_bytes = CHUNK_BYTES

    def __init__(self, model: DiffusionGemma) -> None:
        self.model = model
        self.attend: AttendWithCache = attend_with_cache
        TorchBackend.adapters_changed(self)  # not the method of a subclass, which is not initialized yet

    @torch.no_grad()
    def run(self, pieces: Sequence[Piece], cache: KVCache) -> list[Tensor]:
        hidden = []
        with fast_products(), kept_active(self._sites):
            for piece in pieces:
                switch(self._sites, piece.adapter)
                hidden.append(self._hidden(piece, cache))
        return hidden

    def _hidden(self, piece: Piece, cache: KVCache) -> Tensor:
        model = self.model
        if piece.causal:
            return model.encode_segment(piece.ids_S, cache, piece.row, image_SH=piece.image_SH, attend=self.attend)
        return model.denoise_canvas(piece.ids_S, cache, piece.row, soft_CH=piece.soft_SH, attend=self.attend)

    @torch.no_grad()
    def see(self, image: Image) -> Tensor:
        patches_PD = torch.tensor(image.patches, device=self.model.device)
        with fast_products(), kept_active(self._sites):
            switch(self._sites, None)  # features are shared by requests with any adapter
            return self.model.see(patches_PD, image.rows, image.columns).contiguous()

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        with fast_products():
            return self.model.logits(hidden)

    def logits_of(self, hidden_CH: Tensor, tokens_U: Tensor) -> Tensor:
        return self.logits(hidden_CH)[:, tokens_U]

    @torch.no_grad()
    def draw_within(self, settings: Diffusion, hidden_CH: Tensor, temperature: float, draws: Draws) -> Tensor:
        return draw_within(settings, self.logits(hidden_CH) / temperature, draws)

    @torch.no_grad()
    def predict(
        self,
        hidden_TH: Tensor,
        temperature_T: Tensor,
        key_T2: Tensor,
        lengths: Sequence[int],
        soft: bool = True,
        likely: bool = False,
    ) -> Prediction:
        rows = max(1, self.chunk_bytes // (4 * self.model.config.vocab_size))
        predictions = []
        given = hidden_TH, temperature_T, key_T2
        for segment in zip(*(tensor.split(list(lengths)) for tensor in given), strict=True):
            for hidden_RH, temperature_R, key_R2 in zip(*(part.split(rows) for part in segment), strict=True):
                logits_RV = self.logits(hidden_RH)
                likely_RK = top_tokens(logits_RV, LIKELY) if likely else None
                likely_logit_RK = None if likely_RK is None else logits_RV.take_along_dim(likely_RK, -1)
                logits_RV.div_(temperature_R[:, None])
                candidate_R = draw(logits_RV, key_R2)
                prediction = summarize(self.model, logits_RV, candidate_R, soft)
                predictions.append(replace(prediction, likely_CK=likely_RK, likely_logit_CK=likely_logit_RK))
                del logits_RV  # before the next ones
        return Prediction.cat(predictions)

    def replay(self, work: Sequence[Work], cache: KVCache) -> Replayed | None:
        return None

    def divides(self, work: Sequence[Work]) -> bool:
        return False

    def expect(self, batch: int, canvas: int, prefill: int) -> None:
        pass

    def compile_expected(self, cache: KVCache) -> None:
        pass

    @property
    def captures_left(self) -> int:
        return 0

    def capture_next(self, cache: KVCache) -> None:
        pass

    def fix_kernels(self) -> None:
        pass

    def adapters_changed(self) -> None:
        self._sites = list(set(adapter_sites(self.model).values()))

    def drop_captured(self) -> None:
        pass


@torch.no_grad()
def summarize(model: DiffusionGemma, logits_TV: Tensor, candidate_T: Tensor, soft: bool = True) -> Prediction:
    """Return the prediction of a step from its logits: softcapped and divided by the temperature.

    Without `soft`, it has no self-conditioning.
    """
    argmax_T = argmax(logits_TV)
    below_TV = (logits_TV - logits_TV.take_along_dim(argmax_T[:, None], -1)).clamp_(min=LEAST)
    probability_TV = below_TV.softmax(-1)
    confidence_T = probability_TV.take_along_dim(argmax_T[:, None], -1).squeeze(-1)
    with fast_products():
        soft_TH = model.expected_embedding(probability_TV) if soft else None
    return Prediction(
        candidate_C=candidate_T,
        argmax_C=argmax_T,
        confidence_C=confidence_T,
        # log p = below + log(confidence), and the probabilities add up to 1.
        entropy_C=-(confidence_T.log() + below_TV.mul_(probability_TV).sum(-1)),
        soft_CH=soft_TH,
    )


@contextmanager
def fast_products() -> Iterator[None]:
    """Disable oneDNN on ARM, where its products are slower than those of the BLAS that torch ships with."""
    onednn: Any = torch.backends.mkldnn
    before = onednn.enabled
    onednn.enabled = before and not ARM
    try:
        yield
    finally:
        onednn.enabled = before

"""DiffusionGemma: one transformer used two ways.

As a causal *encoder* it reads text and appends to the KV cache. As a bidirectional *decoder* it reads the cache and
denoises a canvas. Both share their weights, unless a checkpoint unties them; the attention pattern, self-conditioning
and one scalar per layer differ. This is the specification: plain PyTorch, one sequence at a time.

B batch, S text, C canvas, T tokens, H hidden, V vocabulary, E experts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.errors import InputError
from gesso.model.attention import Attend, AttendWithCache, attend_with_cache
from gesso.model.cache import KVCache
from gesso.model.config import Config
from gesso.model.layer import Layer
from gesso.model.modules import Embedding, RMSNorm, SelfConditioning
from gesso.model.rope import frequencies, rotation
from gesso.model.vision import Vision


class Stack(nn.Module):
    """Embedding, layers and final norm, or those of the stack `shared`. The layer scalars are always its own."""

    embed_tokens: Embedding
    layers: nn.ModuleList
    norm: RMSNorm

    def __init__(self, config: Config, shared: "Stack | None" = None) -> None:
        super().__init__()
        self.embed_tokens = shared.embed_tokens if shared else Embedding(config)
        self.layers = shared.layers if shared else nn.ModuleList(Layer(config, shape) for shape in config.layers)
        self.norm = shared.norm if shared else RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layer_scalars = nn.ParameterList(nn.Parameter(torch.empty(1), requires_grad=False) for _ in config.layers)


class DiffusionGemma(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.decoder = Stack(config)
        tied = config.tie_word_embeddings
        self.encoder = Stack(config, shared=self.decoder if tied else None)
        self.self_conditioning = SelfConditioning(config)
        self.lm_head = None if tied else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.vision: Vision | None = None  # a checkpoint may come without; `gesso.checkpoint.vision` attaches it

    # --- the two uses -------------------------------------------------------------------------------------------

    def encode(
        self, ids_BS: Tensor, cache: KVCache, padding: Tensor | None = None, images: Sequence[Tensor] = ()
    ) -> Tensor:
        """Append text to the cache and return its hidden states [B, S, H].

        `padding` [B, S] is True where there is no text. Padding is neither encoded nor counted in positions, wherever
        it is, and its hidden states are zeros. `images` are the results of `see`, in the order in which the runs of
        image tokens come, row by row.
        """
        self._check_batch(ids_BS, cache)
        text_BS = torch.ones_like(ids_BS, dtype=torch.bool) if padding is None else ~padding
        texts = [ids_S[text_S] for ids_S, text_S in zip(ids_BS, text_BS, strict=True)]
        if not text_BS.any():
            raise InputError("nothing to encode: every token is marked as padding")
        image_token = self.config.image_token_id if images else None
        segments = [list(_segments(ids_S, image_token)) for ids_S in texts]
        _check_images(images, [run_S for row in segments for run_S, is_image in row if is_image])
        for row, ids_S in enumerate(texts):
            cache.reserve(row, len(ids_S))
        hidden: list[Tensor] = []
        image_of_run = iter(images)
        for row, row_segments in enumerate(segments):
            for run_S, is_image in row_segments:
                image_SH = next(image_of_run) if is_image else None
                hidden.append(self.encode_segment(run_S, cache, row, image_SH=image_SH))
        hidden_BSH = hidden[0].new_zeros(*ids_BS.shape, self.config.hidden_size)
        hidden_BSH[text_BS] = torch.cat(hidden)
        return hidden_BSH

    def see(self, pixels_PI: Tensor, rows: int, columns: int) -> Tensor:
        """Return the embeddings [S, H] of an image: `pixels_PI` are its patches, row by row, from 0 to 255."""
        if self.vision is None:
            raise InputError("the model has no vision tower: load a checkpoint that has one, without text_only")
        return self.vision(pixels_PI.to(self.device), rows, columns, self.dtype)

    def denoise(self, canvas_BC: Tensor, cache: KVCache, previous_logits: Tensor | None = None) -> Tensor:
        """Return the logits [B, C, V] of canvases that follow the text in the cache; the cache is only read.

        Logits are float32, after the softcap. `previous_logits` are those of the previous step, divided by its
        temperature; None on the first step.
        """
        self._check_batch(canvas_BC, cache)
        logits = []
        for row, ids_C in enumerate(canvas_BC):
            soft_CH = None if previous_logits is None else self.soft_embedding(previous_logits[row])
            logits.append(self.logits(self.denoise_canvas(ids_C, cache, row, soft_CH=soft_CH)))
        return torch.stack(logits)

    def new_cache(self, batch_size: int, max_length: int) -> KVCache:
        return KVCache(self.config, batch_size, max_length, self.device, self.dtype)

    # --- one segment or canvas through the network ---------------------------------------------------------------

    def encode_segment(
        self,
        ids_S: Tensor,
        cache: KVCache,
        row: int,
        *,
        image_SH: Tensor | None = None,
        attend: AttendWithCache = attend_with_cache,
    ) -> Tensor:
        """Append text to a row of the cache and return its hidden states [S, H].

        Given `image_SH`, the text is one image: these are its embeddings, and its ids are not used.
        """
        x_SH = self.embed(ids_S, self.encoder) if image_SH is None else image_SH
        sees_later = image_SH is not None and self.config.bidirectional_images
        hidden_SH = self._through_stack(self.encoder, x_SH, cache, row, attend, causal=True, block=sees_later)
        cache.lengths[row] += len(ids_S)
        return hidden_SH

    def denoise_canvas(
        self,
        ids_C: Tensor,
        cache: KVCache,
        row: int,
        *,
        soft_CH: Tensor | None = None,
        attend: AttendWithCache = attend_with_cache,
    ) -> Tensor:
        """Return the hidden states [C, H] of a canvas that follows a row of the cache, which is only read.

        `soft_CH` is its self-conditioning; None on the first step.
        """
        x_CH = self.embed(ids_C, self.decoder)
        x_CH = self.self_conditioning.condition(x_CH, torch.zeros_like(x_CH) if soft_CH is None else soft_CH)
        return self._through_stack(self.decoder, x_CH, cache, row, attend, causal=False)

    def _through_stack(
        self,
        stack: Stack,
        x_SH: Tensor,
        cache: KVCache,
        row: int,
        attend: AttendWithCache,
        causal: bool,
        block: bool = False,
    ) -> Tensor:
        """Apply a stack to embeddings that follow a row of the cache."""
        start = cache.lengths[row]
        position_S = torch.arange(start, start + len(x_SH), device=x_SH.device)
        # A layer calls its function with queries, keys and values; all else is known.
        attends = [
            partial(attend, cache=layer_cache, row=row, start=start, causal=causal, block=block)
            for layer_cache in cache.layers
        ]
        scalars = [scalar.to(x_SH.dtype) for scalar in stack.layer_scalars]
        hidden_SH, _ = self.through_layers(stack, x_SH, position_S, attends, scalars)
        return hidden_SH

    def through_layers(
        self,
        stack: Stack,
        x_TH: Tensor,
        position_T: Tensor,
        attends: Sequence[Attend],
        scalars: Sequence[Tensor],
        call: Callable[..., tuple[Tensor, Tensor]] = nn.Module.__call__,
    ) -> tuple[Tensor, list[Tensor]]:
        """Apply the layers and the final norm; return hidden states and each router's scores [T, E].

        `call` runs a layer. Training passes activation checkpointing there.
        """
        rotations = {
            shape: rotation(position_T, frequencies(shape, x_TH.device), x_TH.dtype)
            for shape in set(self.config.layers)
        }
        scores = []
        for layer, shape, attend, scalar in zip(stack.layers, self.config.layers, attends, scalars, strict=True):
            x_TH, scores_TE = call(layer, x_TH, attend, rotations[shape], scalar)
            scores.append(scores_TE)
        return stack.norm(x_TH), scores

    # --- the vocabulary -----------------------------------------------------------------------------------------

    def embed(self, ids: Tensor, stack: Stack) -> Tensor:
        return stack.embed_tokens(ids) * self.embed_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., H], in float32 and after the softcap."""
        return softcapped_logits(hidden, self.head, self.config.final_logit_softcapping)

    def soft_embedding(self, logits_TV: Tensor) -> Tensor:
        """Return the expected embedding [T, H] under the predictions, at the scale of embedded tokens."""
        return self.expected_embedding(logits_TV.softmax(-1, dtype=torch.float32))

    def expected_embedding(self, probability_TV: Tensor) -> Tensor:
        return torch.matmul(probability_TV.to(self.dtype), self.decoder.embed_tokens.weight) * self.embed_scale

    def conditioning(self, token_T: Tensor, soft_TH: Tensor) -> Tensor:
        """Return the soft embeddings, replaced by the embedding of the token wherever one is fixed (not negative)."""
        certain_TH = self.embed(token_T.clamp(min=0), self.decoder)
        return torch.where((token_T >= 0)[:, None], certain_TH, soft_TH)

    @property
    def head(self) -> nn.Parameter:
        return self.decoder.embed_tokens.weight if self.lm_head is None else self.lm_head

    @property
    def embed_scale(self) -> float:
        # Rounded to the working dtype, as in the reference: sqrt(2816) is 53.0 in bfloat16.
        return _rounded(self.config.hidden_size**0.5, self.dtype)

    # --- properties ---------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.decoder.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.norm.weight.dtype

    @property
    def is_tied(self) -> bool:
        """Whether encoder and decoder are the same layers."""
        return self.encoder.layers is self.decoder.layers

    def _check_batch(self, ids: Tensor, cache: KVCache) -> None:
        if ids.ndim != 2 or len(ids) > len(cache.lengths) or not ids.shape[1]:
            raise InputError(f"ids must be [at most {len(cache.lengths)}, at least 1], got {list(ids.shape)}")


def _rounded(value: float, dtype: torch.dtype) -> float:
    """Return a number as a dtype stores it, without a tensor, so that torch.compile sees a constant."""
    mantissa, exponent = math.frexp(value)
    steps = 2 / torch.finfo(dtype).eps
    return math.ldexp(round(mantissa * steps) / steps, exponent)


def _segments(ids_S: Tensor, image_token: int | None) -> Iterator[tuple[Tensor, bool]]:
    """Split text into runs of image tokens and the text between them; yield each run, and whether it is an image."""
    if image_token is None:
        if len(ids_S):
            yield ids_S, False
        return
    is_image_S = ids_S == image_token
    borders = (is_image_S[1:] != is_image_S[:-1]).nonzero().flatten() + 1
    for run_S in torch.tensor_split(ids_S, borders.cpu()):
        if len(run_S):
            yield run_S, bool(run_S[0] == image_token)


def _check_images(images: Sequence[Tensor], runs: Sequence[Tensor]) -> None:
    """Check that there is one image for each run of image tokens, of the same length."""
    if [len(image) for image in images] != [len(run) for run in runs]:
        raise InputError(
            f"the ids have runs of {[len(run) for run in runs]} image tokens, but the images have "
            f"{[len(image) for image in images]} soft tokens; give one image for each run, in order"
        )


def softcapped_logits(hidden: Tensor, head_VH: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(F.linear(hidden, head_VH).float() / softcap)

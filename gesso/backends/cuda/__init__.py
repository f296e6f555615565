"""The CUDA backend: packed weights, fused Triton kernels, a side stream and CUDA graphs.

`network.py` runs a pass, `kernels/` has the kernels, `graphs.py` captures passes. The plain model is the specification,
and tests compare the backend with it. T tokens of all canvases, H hidden, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gesso.backends.base import Piece, Replayed, Work
from gesso.backends.cuda.adapters import AdapterBank
from gesso.backends.cuda.counts import COUNTS
from gesso.backends.cuda.experts import stays_on_device
from gesso.backends.cuda.families import ALL, Family, KernelError, Kernels, is_of_kernel, launching
from gesso.backends.cuda.graphs import Graphs
from gesso.backends.cuda.kernels import gluon_kernels
from gesso.backends.cuda.kernels.asked import logits_of
from gesso.backends.cuda.kernels.attention_tiles import tiles
from gesso.backends.cuda.kernels.segments import Segment
from gesso.backends.cuda.kernels.vocab import predict
from gesso.backends.cuda.kernels.within import draw_within
from gesso.backends.cuda.linear import product
from gesso.backends.cuda.network import Plan, flow, note, segments_of
from gesso.backends.cuda.pass_sizes import Expected
from gesso.backends.cuda.passes import groups
from gesso.backends.cuda.streaming import Copies, ExpertStream, GpuCopies
from gesso.backends.torch import TorchBackend
from gesso.cards.card import Card
from gesso.cards.running import card_of
from gesso.checkpoint.quantize.packed import Packed
from gesso.diffusion.noise import Draws
from gesso.diffusion.prediction import Prediction
from gesso.errors import GessoError
from gesso.model.cache import SPARE, KVCache
from gesso.model.experts import Experts
from gesso.model.modules import Linear
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion

logger = logging.getLogger("gesso")


def supports(model: DiffusionGemma) -> bool:
    """Return whether the kernels apply: not in float16, the hidden size must be a multiple of 16, and the card must
    run them.
    """
    card = card_of(model.device)
    if not card.runs_kernels:
        major, minor = card.capability
        logger.warning(
            "%s has compute capability %d.%d, and the kernels need 8.0: plain operations run instead, which are slower",
            *(card.title, major, minor),
        )
        return False
    return model.dtype in (torch.bfloat16, torch.float32) and model.config.hidden_size % 16 == 0


def lacking(model: DiffusionGemma, card: Card) -> Kernels:
    """Return the kernels without those families that convert FP8, if the model has it and the card does not."""
    if card.converts_e4m3:
        return ALL
    off: set[Family] = set()
    for name, module in model.named_modules():
        if not isinstance(module, Packed) or module.format not in ("fp8", "nvfp4"):
            continue
        if ".experts." in name:
            off.add("experts")
        elif "embed_tokens" in name or "lm_head" in name:
            off |= {"vocabulary end", "rows", "products"}
        else:
            off.add("products")
    if off:
        logger.warning(
            "%s does not convert FP8: plain operations run in place of the kernels for %s, which is slower",
            *(card.title, ", ".join(sorted(off))),
        )
    return Kernels(frozenset(off))


def streaming_error(card: Card, reason: str) -> GessoError:
    return GessoError(
        "experts are streamed from host memory, which needs the kernels of the experts, and these do not work on "
        f"{card.title}: {reason}. Load a precision that fits the GPU"
    )


class CudaPasses(TorchBackend):
    """Passes with fused kernels, operation by operation."""

    copies: Callable[[torch.device], Copies] = GpuCopies  # of streamed experts

    def __init__(self, model: DiffusionGemma, bank: AdapterBank | None = None, kernels: Kernels | None = None) -> None:
        self.kernels = lacking(model, card_of(model.device)) if kernels is None else kernels
        # First, because the torch backend takes note of adapters, too.
        self.bank = bank or AdapterBank(model, together=self.kernels.run("products"))
        super().__init__(model)
        self.stream = ExpertStream(model, self.copies)

    @torch.no_grad()
    def run(self, pieces: Sequence[Piece], cache: KVCache) -> list[Tensor]:
        segments = segments_of(
            [(piece.row, len(piece.ids_S), piece.causal, self.slot(piece.adapter)) for piece in pieces], cache
        )
        if self.model.config.bidirectional_images:
            segments = [
                segment if piece.image_SH is None else replace(segment, block=True)
                for segment, piece in zip(segments, pieces, strict=True)
            ]
        if self.model.is_tied:
            hidden = self.flow(self.plan(segments, cache, [len(piece.ids_S) for piece in pieces]), pieces)
        else:  # two networks: text first, since canvases read its keys and values
            hidden = [torch.empty(0)] * len(pieces)
            for causal, stack in ((True, self.model.encoder), (False, self.model.decoder)):
                chosen = [i for i, piece in enumerate(pieces) if piece.causal is causal]
                if chosen:
                    lengths = [len(pieces[i].ids_S) for i in chosen]
                    plan = self.plan([segments[i] for i in chosen], cache, lengths)
                    outputs = flow(self.model, plan, [pieces[i] for i in chosen], stack, self.stream, self.bank.pairs)
                    for i, output in zip(chosen, outputs, strict=True):
                        hidden[i] = output
        note(segments, cache)
        return hidden

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        if not self.kernels.run("products"):
            return super().logits(hidden)
        hidden_TH, softcap = hidden.flatten(0, -2), self.model.config.final_logit_softcapping
        logits_TV = softcap * torch.tanh(product(hidden_TH, self.model.head, [len(hidden_TH)]).float() / softcap)
        return logits_TV.unflatten(0, hidden.shape[:-1])

    @torch.no_grad()
    def logits_of(self, hidden_CH: Tensor, tokens_U: Tensor) -> Tensor:
        if not self._ends_in_kernels(hidden_CH):
            return super().logits_of(hidden_CH, tokens_U)
        with launching("vocabulary end"):
            return logits_of(hidden_CH, self.model.head, self.model.config.final_logit_softcapping, tokens_U)

    @torch.no_grad()
    def draw_within(self, settings: Diffusion, hidden_CH: Tensor, temperature: float, draws: Draws) -> Tensor:
        key_C2 = draws.keys(len(hidden_CH))
        if key_C2 is None or not self._ends_in_kernels(hidden_CH):
            return super().draw_within(settings, hidden_CH, temperature, draws)
        product_CV = product(hidden_CH, self.model.head, [len(hidden_CH)], self.kernels)
        with launching("vocabulary end"):
            return draw_within(settings, product_CV, self.model.config.final_logit_softcapping, temperature, key_C2)

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
        if not self._ends_in_kernels(hidden_TH):
            return super().predict(hidden_TH, temperature_T, key_T2, lengths, soft, likely)
        model, rows = self.model, (temperature_T, key_T2)
        table, softcap = model.decoder.embed_tokens.weight, model.config.final_logit_softcapping
        with launching("vocabulary end"):
            return predict(hidden_TH, model.head, table, model.embed_scale, softcap, *rows, soft, likely)

    def _ends_in_kernels(self, hidden: Tensor) -> bool:
        """Return whether the kernels of the vocabulary end apply. They need stored logits of 16 bits, and tiles of
        float32 do not fit into shared memory.
        """
        return self.kernels.run("vocabulary end") and hidden.dtype != torch.float32

    # --- operations that a graph captures ---------------------------------------------------------------------------

    @property
    def can_capture(self) -> bool:
        """Whether a pass reads nothing on the host, and only kernels multiply in it."""
        if self.kernels.off:
            return False
        model = self.model
        modules = [module for module in model.decoder.modules() if isinstance(module, Experts)]
        return model.is_tied and all(stays_on_device(each, model.config.top_k_experts) for each in modules)

    @property
    def can_pack(self) -> bool:
        """Whether padding never changes the results of other tokens, to the last bit: only kernels multiply and
        predict.
        """
        modules = list(self.model.decoder.modules())
        widths = [module.weight.shape[-1] for module in modules if isinstance(module, Linear)]
        widths += [
            module.down_proj.shape[0] * module.down_proj.shape[-1] for module in modules if isinstance(module, Experts)
        ]
        return self.model.dtype == torch.bfloat16 and not any(width % 16 for width in widths)

    def slot(self, adapter: str | None) -> int:
        return self.bank.slot(adapter)

    def plan(
        self, segments: Sequence[Segment], cache: KVCache, lengths: Sequence[int], longest: int | None = None
    ) -> Plan:
        return Plan(segments, cache, lengths, longest, adapted=bool(self.bank.pairs), kernels=self.kernels)

    def flow(self, plan: Plan, pieces: Sequence[Piece]) -> list[Tensor]:
        return flow(self.model, plan, pieces, self.model.decoder, self.stream, self.bank.pairs)


class CudaBackend(CudaPasses):
    captures = True
    counts = COUNTS
    passes: type[CudaPasses] = CudaPasses

    def __init__(self, model: DiffusionGemma) -> None:
        super().__init__(model)
        gluon_kernels.missing_kernels(model.device)  # warns of each
        if self.stream.buffers and not self.kernels.run("experts"):
            raise streaming_error(card_of(model.device), "the card does not convert FP8")
        self.expected: Expected | None = None
        self.is_server = False  # whether passes are captured before they are needed
        self.may_switch_off = True  # families whose kernels fail; an error otherwise
        self._forget()

    # --- kernels that do not work -----------------------------------------------------------------------------------

    def fix_kernels(self) -> None:
        """Treat a kernel that fails from now on as an error: the bits of a request's text must not change any more."""
        self.may_switch_off = False

    def run(self, pieces: Sequence[Piece], cache: KVCache) -> list[Tensor]:
        try:
            return super().run(pieces, cache)
        except KernelError as error:
            self._switch_off(error)
            texts = [(piece.row, len(piece.ids_S)) for piece in pieces if piece.causal]
            _check_repeatable(texts, cache, error)
        return self.run(pieces, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        try:
            return super().logits(hidden)
        except KernelError as error:
            self._switch_off(error)
        return self.logits(hidden)

    def logits_of(self, hidden_CH: Tensor, tokens_U: Tensor) -> Tensor:
        try:
            return super().logits_of(hidden_CH, tokens_U)
        except KernelError as error:
            self._switch_off(error)
        return self.logits_of(hidden_CH, tokens_U)

    def draw_within(self, settings: Diffusion, hidden_CH: Tensor, temperature: float, draws: Draws) -> Tensor:
        try:
            return super().draw_within(settings, hidden_CH, temperature, draws)
        except KernelError as error:
            self._switch_off(error)
        return self.draw_within(settings, hidden_CH, temperature, draws)

    def predict(
        self,
        hidden_TH: Tensor,
        temperature_T: Tensor,
        key_T2: Tensor,
        lengths: Sequence[int],
        soft: bool = True,
        likely: bool = False,
    ) -> Prediction:
        given = hidden_TH, temperature_T, key_T2, lengths, soft, likely
        try:
            return super().predict(*given)
        except KernelError as error:
            self._switch_off(error)
        return self.predict(*given)

    def _switch_off(self, error: KernelError) -> None:
        """Let plain operations take the place of a family whose kernel has failed, from now on."""
        if not self.may_switch_off:
            raise error
        if gluon_kernels.switch_off(error.family, str(error)):  # perhaps only these fail
            tiles.cache_clear()
            self._forget()
            return
        if error.family == "experts" and self.stream.buffers:
            raise streaming_error(card_of(self.model.device), str(error)) from error
        logger.warning(
            "the kernels of the family %r do not work on %s, and plain operations take their place, which is slower "
            "(%s). Please report this line with the versions of torch and Triton",
            *(error.family, card_of(self.model.device).title, error),
        )
        self.kernels = self.kernels.without(error.family)
        if error.family == "products":
            self.bank.divide(self.model)
        self._forget()

    # --- captured passes --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def replay(self, work: Sequence[Work], cache: KVCache) -> Replayed | None:
        try:
            graph = self.graphs.find(work, cache)
            return None if graph is None else graph.run(work, cache)
        except KernelError as error:
            self._switch_off(error)
            _check_repeatable([(item.row, len(text)) for item in work for text in item.texts], cache, error)
        return None

    def divides(self, work: Sequence[Work]) -> bool:
        # With streamed experts, each part would copy all of them.
        return self.graphs.can_capture and not self.stream.buffers and groups(work) > 1

    def expect(self, batch: int, canvas: int, prefill: int) -> None:
        self.expected = Expected(batch, canvas, prefill)
        self._forget()

    @torch.no_grad()
    def compile_expected(self, cache: KVCache) -> None:
        self.is_server = self.graphs.is_server = True
        if self.graphs.left and self.model.device.type == "cuda":
            try:
                self.graphs.compile(cache, self.counts)
            except Exception as error:  # raised in other threads: the captures compile again, and name the family
                if not isinstance(error, KernelError) and not is_of_kernel(error):
                    raise

    @property
    def captures_left(self) -> int:
        return len(self.graphs.left) if self.is_server else 0

    @torch.no_grad()
    def capture_next(self, cache: KVCache) -> None:
        try:
            self.graphs.capture_next(cache)
        except KernelError as error:
            self._switch_off(error)

    def adapters_changed(self) -> None:
        super().adapters_changed()
        try:
            moved = self.bank.update(self.model)
        except Exception:
            self._forget()
            raise
        if moved:
            self._forget()

    def drop_captured(self) -> None:
        self._forget()  # first: this frees memory, and copies of changed adapters need some
        self.bank.update(self.model, changed=True)

    def _forget(self) -> None:
        # Graphs do not refer to this object: in a reference cycle they would be freed by the garbage collector, at a
        # moment of its choice, and freeing a graph invalidates the capture of another.
        self.graphs = Graphs(self.passes(self.model, self.bank, self.kernels), self.expected, self.is_server)


def _check_repeatable(texts: Sequence[tuple[int, int]], cache: KVCache, error: KernelError) -> None:
    """Reject repeating a pass over texts (row, length) that has overwritten keys which its own tokens see.

    In a ring, new tokens take the slots of old ones, and the layers before the failed kernel have been written.
    """
    rings = [layer for layer in cache.layers if layer.window is not None]
    for row, length in texts:
        start = cache.lengths[row]
        wraps = any(start + length > len(layer.k[row]) for layer in rings)
        if start and length > SPARE and wraps:
            raise GessoError(
                f"a kernel failed within a text, and this request has to be repeated: {error}. Kernels of the family "
                f"{error.family!r} are switched off now"
            ) from error

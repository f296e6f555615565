"""Record the launches of a pass: which kernels a model would launch on a card, and with which arguments.

The wrappers run as they are, on the meta device, where tensors have shapes and no values. Triton binds the arguments of
each launch as on a GPU of that card; instead of compiling the kernel, its source and options are recorded. So the
variants follow the code. This process is then good for nothing else.

T tokens, S tokens of a text, H hidden.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gesso.adapters.lora import Lora
from gesso.adapters.sites import adapter_sites, make_adaptable, weight_of
from gesso.backends.base import Piece
from gesso.backends.cuda import CudaPasses, side_stream
from gesso.backends.cuda.canvases import Slots
from gesso.backends.cuda.families import Family
from gesso.backends.cuda.packed import PackedPass
from gesso.backends.cuda.pass_sizes import Expected, PassSize
from gesso.backends.cuda.token_pass import CapturedTokens, Shape
from gesso.cards.card import Card
from gesso.cards.running import playing
from gesso.checkpoint.parameters import assign, empty_model
from gesso.checkpoint.quantize.formats import FORMATS, Format, format_of, is_expert
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.random_weights import config_of
from gesso.diffusion.noise import HashSource
from gesso.model.cache import KVCache
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion

META = torch.device("meta")
CANVAS, CANVASES, PREFILL, CONTEXT = 256, 8, 2048, 8192
SIZES = (
    PassSize(CANVAS, 0),
    PassSize(CANVAS, 0, any_canvases=True),
    PassSize(CANVASES * CANVAS, 0, any_canvases=True),
    PassSize(0, PREFILL),
)
ADAPTED = (PassSize(CANVAS, 0, any_canvases=True),)
IMAGE = 280  # soft tokens of an image
RANK = 16
TOKENS = 100  # in the answer of a constraint


@dataclass(frozen=True)
class Model:
    """A model whose launches are recorded. `experts`: their format, if it is not that of `quantize`."""

    name: str
    shape: str
    quantize: str | None
    experts: str | None = None
    adapted: bool = False


MODELS = (
    Model("bf16", "26b-a4b", None),
    Model("bf16 + adapter", "26b-a4b", None, adapted=True),
    Model("fp8", "26b-a4b", "fp8"),
    Model("fp8 + adapter", "26b-a4b", "fp8", adapted=True),
    Model("int4", "26b-a4b", "int4"),
    Model("int4 + adapter", "26b-a4b", "int4", adapted=True),
    Model("nvfp4", "26b-a4b", "nvfp4"),
    Model("uint4", "26b-a4b", "int4", experts="uint4"),
    Model("mini", "mini", None),
)


@dataclass
class Launch:
    """A kernel with the types, constants and options that Triton compiles it for."""

    function: Any
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Any
    models: list[str] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        return kernel_name(self.function)

    @property
    def variant(self) -> str:
        """What tells this launch of a kernel from its others. Arguments that are None have no type."""
        names = list(self.signature)
        given = {names[path[0]]: value for path, value in self.constants.items() if len(path) == 1}
        constants = [f"{name}={_short(value)}" for name, value in given.items() if value is not None]
        types = [_short(each) for each in self.signature.values() if each != "constexpr"]
        # one bit per argument: whether it is a multiple of 16
        aligned = "".join("1" if (place,) in self.attributes else "0" for place in range(len(names)))
        options = [f"warps={self.options.num_warps}", f"stages={self.options.num_stages}"]
        if self.options.maxnreg:
            options.append(f"maxnreg={self.options.maxnreg}")
        return " ".join([*options, *constants, *types, f"{int(aligned, 2):x}"])


def kernel_name(function: Any) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def _short(value: Any) -> str:
    return str(value).replace(" ", "")


@dataclass(frozen=True)
class Recorded:
    """The launches of several models on a card, each once, and the families without kernels by model."""

    launches: list[Launch]
    off: dict[str, list[Family]]


def record(card: Card, models: tuple[Model, ...] = MODELS) -> Recorded:
    recorder = _Recorder(card)
    off: dict[str, list[Family]] = {}
    with playing(card), torch.no_grad():
        for model in models:
            recorder.model = model.name
            backend = CudaPasses(_make(model))
            if backend.kernels.off:  # plain operations read values; attention has the kernels of bfloat16
                off[model.name] = sorted(backend.kernels.off)
                continue
            for run in _passes(backend, model.adapted):
                run()
    return Recorded(list(recorder.launches.values()), off)


class _Recorder:
    """Record launches in place of compiling them."""

    def __init__(self, card: Card) -> None:
        major, minor = card.capability
        self.target = GPUTarget("cuda", 10 * major + minor, 32)
        self.launches: dict[tuple[str, str], Launch] = {}
        self.model = ""
        driver.set_active(_Driver(self.target))
        functions: Any = JITFunction
        functions._do_compile = lambda function, *args: self.add(function, *args)
        tensors: Any = Tensor
        tensors.is_cuda = property(lambda tensor: tensor.is_meta)  # with instructions of GPUs, not of the interpreter
        streams: Any = side_stream.SideStream
        streams.__enter__ = lambda stream: stream

    def add(
        self, function: Any, key: Any, signature: Any, device: int, constants: Any, options: Any, attributes: Any,
        warmup: bool,
    ) -> None:  # fmt: skip
        launch = Launch(function, signature, constants, attributes, options)
        launch = self.launches.setdefault((launch.kernel, launch.variant), launch)
        if self.model not in launch.models:
            launch.models.append(self.model)


@dataclass(frozen=True)
class _Driver:
    """Stand in for the driver of a GPU."""

    target: GPUTarget

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _config(shape: str) -> Config:
    """Return the configuration of a shape, with one layer of each kind."""
    return config_of(shape, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])


def _make(model: Model) -> DiffusionGemma:
    """Return a model without values."""
    config = _config(model.shape)
    network = empty_model(config if model.quantize is None else config.quantized(model.quantize))
    for name, parameter in list(network.named_parameters()):
        format = _format(model, name, tuple(parameter.shape))
        if format is None:
            assign(network, name, torch.empty(parameter.shape, dtype=torch.bfloat16, device=META))
        else:
            assign(network, name, _packed(format, tuple(parameter.shape)))
    if model.adapted:
        make_adaptable(network)
        for path, adapters in adapter_sites(network).items():
            adapters.put("adapter", Lora(weight_of(network, path), RANK, RANK))
    return network.eval()


def _format(model: Model, name: str, shape: tuple[int, ...]) -> Format | None:
    format = None if model.quantize is None else format_of(name, shape, model.quantize)
    return FORMATS[model.experts] if format is not None and model.experts and is_expert(name) else format


def _packed(format: Format, shape: tuple[int, ...]) -> Packed:
    layout = format.layout(shape).items()
    packed = format.packed(shape, {key: torch.empty(size, dtype=dtype, device=META) for key, (size, dtype) in layout})
    packed.dtype = torch.bfloat16
    return packed


def _passes(backend: CudaPasses, adapted: bool) -> Iterator[Callable[[], Any]]:
    """Yield captured passes: steps, prompts, and a token; and operations outside of them."""
    config = backend.model.config
    cache = KVCache(config, 1, CONTEXT, META, torch.bfloat16)
    expected = Expected(CANVASES, CANVAS, PREFILL)
    slots = Slots(expected.batch, expected.canvas, backend.model)
    for size in ADAPTED if adapted else SIZES:
        yield PackedPass(backend, size, slots, expected, cache).dry_run
    if adapted:
        return
    yield partial(_run_token, backend, cache)
    hidden_CH = torch.empty(CANVAS, config.hidden_size, dtype=torch.bfloat16, device=META)
    yield partial(backend.logits, hidden_CH)
    yield partial(backend.logits_of, hidden_CH, torch.empty(TOKENS, dtype=torch.long, device=META))
    draws = HashSource().at(0, 0, 0, META)
    yield partial(backend.draw_within, Diffusion(top_k=20, top_p=0.9), hidden_CH, 0.7, draws)
    image_SH = torch.empty(IMAGE, config.hidden_size, dtype=torch.bfloat16, device=META)
    ids_S = torch.empty(IMAGE, dtype=torch.long, device=META)
    yield partial(backend.run, [Piece(0, ids_S, causal=True, image_SH=image_SH)], cache)


def _run_token(backend: CudaPasses, cache: KVCache) -> None:
    """Run the captured pass that writes the next token of one request."""
    shape = Shape(pieces=((1, "next"),), lengths=(1,), likely=False)
    work: Any = SimpleNamespace(row=0, adapter=None, pieces=shape.pieces, texts=())
    CapturedTokens(backend, shape, [work], cache)._pass()

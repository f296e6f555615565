"""Measure what `--cache-dir` saves when a server on a CPU starts again and reads the same long prompt.

    python -m benchmarks.stored_prompts --layers 6

The model has random weights in int4 and the layers of the 26B, as many as asked. Each row is an engine with an empty
cache that reads the prompt and writes one token: without files, with files to write, and with files to read. The last
one must give the same token as the first. Loading the weights is not part of the times.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from gesso import bundled
from gesso.api import Gesso
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint import random_weights
from gesso.checkpoint.generation import GenerationDefaults
from gesso.cores import threads_for
from gesso.engine.prefix_files import SUFFIX, PrefixFiles
from gesso.errors import GessoError
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma

TEXT_IDS = (512, 4096)  # ids of gesso-mini's tokenizer that are text


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    seconds: float  # to the first token
    token: int


def measure(config: Config, tokens: int, directory: Path) -> list[Row]:
    """Return the three rows. `directory` gets the files."""
    model = random_weights.make(config, torch.device("cpu"), torch.float32, "int4", on_cpu=True)
    generator = torch.Generator().manual_seed(0)
    prompt: list[int] = torch.randint(*TEXT_IDS, (tokens,), generator=generator).tolist()
    stored = PrefixFiles(directory, "benchmark")
    rows = [
        _first_token("without files", model, prompt, None),
        _first_token("files are written", model, prompt, stored),
        _first_token("files are read", model, prompt, stored),
    ]
    if len({row.token for row in rows}) > 1:
        raise GessoError(f"stored prompts changed the text: {rows}")
    return rows


def _first_token(what: str, model: DiffusionGemma, prompt: list[int], stored: PrefixFiles | None) -> Row:
    directory = bundled.directory()
    g = Gesso(
        model,
        Tokenizer.from_directory(directory),
        GenerationDefaults.from_directory(directory, model.config),
        directory,
        max_batch=1,
        max_length=len(prompt) + model.config.canvas_length,
    )
    if stored is not None:
        g.engine.store_prefixes(stored)
    began = time.perf_counter()
    result = g.generate(prompt, max_new_tokens=1, seed=1, steps=1, canvas_length=16)
    return Row(what=what, seconds=time.perf_counter() - began, token=result.tokens[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30, help="a multiple of 6; default: the 30 of the 26B")
    parser.add_argument("--tokens", type=int, default=4000, help="of the prompt")
    chosen = parser.parse_args()
    torch.set_num_threads(threads_for(None, torch.get_num_threads()))
    kinds = random_weights.SHAPES["26b-a4b"]["layer_types"][: chosen.layers]
    config = random_weights.config_of("26b-a4b", num_hidden_layers=len(kinds), layer_types=kinds)
    with TemporaryDirectory() as directory:
        rows = measure(config, chosen.tokens, Path(directory))
        written = sum(path.stat().st_size for path in Path(directory).glob(f"*{SUFFIX}"))
    print(f"{len(kinds)} layers, {chosen.tokens} tokens, {torch.get_num_threads()} threads, {written / 1e6:.0f} MB")
    for row in rows:
        print(f"{row.what:20}{row.seconds:8.1f} s")


if __name__ == "__main__":
    main()

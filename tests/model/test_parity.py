"""Hidden states and logits equal those of the reference, for random configurations written by `transformers`.

B batch, S text, C canvas, V vocabulary.
"""

import statistics

import pytest
import torch
from transformers import DiffusionGemmaForBlockDiffusion

from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.safetensors import weight_files
from gesso.checkpoint.source import open_source
from gesso.model.transformer import DiffusionGemma
from tests import oracle

CONFIGS = (1, 3, 5, 7, 9, 15, 17, 21)  # together: every value of every choice that changes the attention
TOLERANCE = 1e-4

Pair = tuple[DiffusionGemmaForBlockDiffusion, DiffusionGemma]


def load_pair(tmp_path, seed, dtype=torch.float32, **options) -> Pair:
    reference = oracle.checkpoint(tmp_path / "model", seed, **options)
    ours = load_weights(open_source(tmp_path / "model"), torch.device("cpu"), dtype)
    return reference, ours


def ids(reference, *shape):
    return torch.randint(0, reference.config.text_config.vocab_size, shape)


@torch.no_grad()
def steps(reference, ours, prompt_BS, canvases: int = 3, padding=None):
    """Encode a prompt, then denoise each canvas without and with self-conditioning and commit it.

    Yield pairs of outputs to compare.
    """
    batch, length = len(prompt_BS), reference.config.canvas_length
    theirs, cache = oracle.new_cache(reference), ours.new_cache(batch, 512)
    mask = None if padding is None else ~padding
    encoded = reference.model.encoder(
        input_ids=prompt_BS, attention_mask=mask, past_key_values=theirs
    ).last_hidden_state
    yield "encoder", encoded, ours.encode(prompt_BS, cache, padding)
    for i in range(canvases):
        canvas_BC = ids(reference, batch, length)
        if mask is not None:
            mask = torch.nn.functional.pad(mask, (0, length), value=True)
        arguments = {"decoder_input_ids": canvas_BC, "past_key_values": theirs, "decoder_attention_mask": mask}
        before = list(cache.lengths)
        first = reference(**arguments).logits
        mine = ours.denoise(canvas_BC, cache)
        assert mine.dtype == torch.float32
        yield f"canvas {i}, first step", first, mine
        second = reference(**arguments, self_conditioning_logits=first / 0.7).logits
        yield f"canvas {i}, self-conditioned", second, ours.denoise(canvas_BC, cache, first / 0.7)
        assert cache.lengths == before, "denoising must not write the cache"
        committed = reference.model.encoder(input_ids=canvas_BC, attention_mask=mask, past_key_values=theirs)
        yield f"commit {i}", committed.last_hidden_state, ours.encode(canvas_BC, cache)


def assert_close(pairs, valid=None):
    for what, theirs, mine in pairs:
        if what == "encoder" and valid is not None:
            theirs, mine = theirs[valid], mine[valid]
        distance = (theirs - mine).abs().max().item()
        assert distance < TOLERANCE, f"{what}: {distance}"


@pytest.mark.parametrize("seed", CONFIGS)
def test_hidden_states_and_logits_equal_the_reference_at_every_prompt_length(tmp_path, seed):
    reference, ours = load_pair(tmp_path, seed)
    window = reference.config.text_config.sliding_window
    for length in (1, window - 1, window, window + 1, 3 * window):
        assert_close(steps(reference, ours, ids(reference, 2, length), canvases=2))


@pytest.mark.parametrize("seed", (0, 9, 15, 21))
def test_left_padded_batches_equal_the_reference(tmp_path, seed):
    reference, ours = load_pair(tmp_path, seed)
    window = reference.config.text_config.sliding_window
    lengths = [1, window, 2 * window + 3]
    prompt = ids(reference, len(lengths), max(lengths))
    padding = torch.arange(max(lengths))[None, :] < max(lengths) - torch.tensor(lengths)[:, None]
    assert_close(steps(reference, ours, prompt, padding=padding), valid=~padding)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_padded_row_equals_the_row_alone(tmp_path, seed):
    """Every bit is equal, because positions and operations are the same as for the row alone."""
    reference, ours = load_pair(tmp_path, seed)
    prompt, canvas = ids(reference, 2, 9), ids(reference, 2, reference.config.canvas_length)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, :4] = True
    together, alone = ours.new_cache(2, 64), ours.new_cache(1, 64)
    ours.encode(prompt, together, padding)
    ours.encode(prompt[1:, 4:], alone)
    assert torch.equal(ours.denoise(canvas, together)[1], ours.denoise(canvas[1:], alone)[0])


@pytest.mark.parametrize("seed", [8])
def test_sharded_files_load_to_the_same_model(tmp_path, seed):
    reference, ours = load_pair(tmp_path, seed, max_shard_size="20KB")
    assert len(weight_files(tmp_path / "model")) > 3
    assert_close(steps(reference, ours, ids(reference, 1, 11)))


def test_prefill_in_chunks_equals_prefill_at_once(tmp_path):
    reference, ours = load_pair(tmp_path, 3)
    window = reference.config.text_config.sliding_window
    prompt, canvas = ids(reference, 1, 3 * window + 1), ids(reference, 1, 8)
    whole, chunked = ours.new_cache(1, 256), ours.new_cache(1, 256)
    ours.encode(prompt, whole)
    for chunk in prompt.split(window // 2 + 1, dim=1):
        ours.encode(chunk, chunked)
    assert (ours.denoise(canvas, whole) - ours.denoise(canvas, chunked)).abs().max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_error_is_no_larger_than_that_of_the_reference(tmp_path, dtype):
    """The median distance to the float32 result over four models is at most a tenth above that of the reference.

    The mean would depend on chance: a router with nearly equal scores may choose another expert, a large jump.
    """
    distances = {"reference": [], "ours": []}
    for seed in (2, 4, 11, 20):
        directory = tmp_path / str(seed)
        torch.manual_seed(seed)
        exact, ours = load_pair(directory, seed, dtype)
        low = DiffusionGemmaForBlockDiffusion.from_pretrained(directory / "model", dtype=dtype).eval()
        prompt = ids(exact, 2, 3 * exact.config.text_config.sliding_window)
        for name in distances:
            torch.manual_seed(seed)  # the same canvases for both
            pairs = steps(exact, ours, prompt) if name == "ours" else reference_steps(exact, low, prompt)
            distances[name] += [((theirs - mine.float()).norm() / theirs.norm()).item() for _, theirs, mine in pairs]
    assert statistics.median(distances["ours"]) <= 1.1 * statistics.median(distances["reference"])


@torch.no_grad()
def reference_steps(exact, low, prompt_BS, canvases: int = 3):
    """Do the same as `steps`, with the reference in low precision instead of gesso."""
    caches = {model: oracle.new_cache(model) for model in (exact, low)}

    def encode(ids_BS):
        return [m.model.encoder(input_ids=ids_BS, past_key_values=caches[m]).last_hidden_state for m in (exact, low)]

    def denoise(canvas_BC, previous):
        return [
            m(decoder_input_ids=canvas_BC, past_key_values=caches[m], self_conditioning_logits=previous).logits
            for m in (exact, low)
        ]

    yield "encoder", *encode(prompt_BS)
    for i in range(canvases):
        canvas_BC = ids(exact, len(prompt_BS), exact.config.canvas_length)
        first, mine = denoise(canvas_BC, None)
        yield f"canvas {i}, first step", first, mine
        yield f"canvas {i}, self-conditioned", *denoise(canvas_BC, first / 0.7)
        yield f"commit {i}", *encode(canvas_BC)

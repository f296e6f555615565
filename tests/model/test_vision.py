"""What the model sees equals the reference: the tower, its projection, and text and canvases after images.

B batch, S text, C canvas, P patches.
"""

import pytest
import torch
from transformers import Gemma4ImageProcessorPil, Gemma4VisionConfig

from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from tests import oracle

TOLERANCE = 1e-4


def load_pair(directory, seed, config=None, dtype=torch.float32):
    reference = oracle.checkpoint(directory / "model", seed, config=config or oracle.seeing_config(seed))
    return reference, load_weights(open_source(directory / "model"), torch.device("cpu"), dtype)


@torch.no_grad()
def encoded(reference, ids_BS, cache, pictures):
    """Return the hidden states of the reference's encoder with the masks that its `generate` builds.

    A call of the encoder alone would build them and then use others: the tokens of an image would not see each other.
    """
    images = (ids_BS == reference.config.image_token_id).long()
    masks = reference.model.encoder.create_masks_for_generate(
        config=reference.config,
        inputs_embeds=torch.empty(*ids_BS.shape, 0),
        attention_mask=torch.ones_like(ids_BS),
        past_key_values=cache,
        position_ids=torch.arange(ids_BS.shape[1])[None],
        mm_token_type_ids=images,
    )
    values, places = oracle.padded(pictures)
    return reference.model.encoder(
        input_ids=ids_BS, attention_mask=masks, past_key_values=cache, pixel_values=values, image_position_ids=places
    ).last_hidden_state


def prompt(reference, lengths, sizes):
    """Return ids: texts of these lengths, with an image of so many soft tokens after each but the last."""
    config, parts = reference.config, []
    for length, size in zip(lengths, [*sizes, None], strict=True):
        parts.append(torch.randint(6, config.text_config.vocab_size, (length,)))
        if size is not None:
            parts.append(torch.tensor([config.boi_token_id, *[config.image_token_id] * size, config.eoi_token_id]))
    return torch.cat(parts)[None]


@pytest.mark.parametrize("seed", range(12))
@torch.no_grad()
def test_tower_and_projection_equal_the_reference(tmp_path, seed):
    reference, ours = load_pair(tmp_path, seed)
    sizes = [(1, 1), (2, 3), (1, 7), (8, 1), (5, 4)]
    pictures = [oracle.picture(reference.config.vision_config, *size) for size in sizes]
    values, places = oracle.padded([theirs for theirs, _ in pictures])
    expected = reference.model.encoder.get_image_features(values, places)
    tower = torch.cat([ours.vision.tower(*mine, torch.float32) for _, mine in pictures])
    assert (expected.last_hidden_state - tower).abs().max() < TOLERANCE
    assert (expected.pooler_output - torch.cat([ours.see(*mine) for _, mine in pictures])).abs().max() < TOLERANCE


@pytest.mark.parametrize("seed", range(12))
@torch.no_grad()
def test_text_and_canvases_after_images_equal_the_reference(tmp_path, seed):
    reference, ours = load_pair(tmp_path, seed)
    # Images before, between and after texts; the last exceeds every window.
    cases = [((0, 3), [(2, 2)]), ((5, 0, 2), [(1, 1), (2, 3)]), ((3, 2, 0), [(1, 2), (5, 4)]), ((20, 1), [(4, 6)])]
    for lengths, sizes in cases:
        pictures = [oracle.picture(reference.config.vision_config, *size) for size in sizes]
        ids_BS = prompt(reference, lengths, [rows * columns for rows, columns in sizes])
        theirs, cache = oracle.new_cache(reference), ours.new_cache(1, 128)
        expected = encoded(reference, ids_BS, theirs, [given for given, _ in pictures])
        mine = ours.encode(ids_BS, cache, images=[ours.see(*given) for _, given in pictures])
        assert (expected - mine).abs().max() < TOLERANCE
        canvas_BC = torch.randint(0, reference.config.text_config.vocab_size, (1, reference.config.canvas_length))
        first = reference(decoder_input_ids=canvas_BC, past_key_values=theirs).logits
        assert (first - ours.denoise(canvas_BC, cache)).abs().max() < TOLERANCE
        again = reference(decoder_input_ids=canvas_BC, past_key_values=theirs, self_conditioning_logits=first).logits
        assert (again - ours.denoise(canvas_BC, cache, first)).abs().max() < TOLERANCE


@pytest.mark.parametrize("budget", [70, 140, 280, 560, 1120])
@torch.no_grad()
def test_processed_pictures_of_every_size_and_budget_give_the_same_embeddings(tmp_path, budget):
    config = oracle.seeing_config(1)
    config.vision_config = Gemma4VisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        head_dim=16, position_embedding_size=1120 * 3,
    )  # fmt: skip
    reference, ours = load_pair(tmp_path, 1, config)
    process = Gemma4ImageProcessorPil(max_soft_tokens=budget)
    for height, width in ((1, 1), (500, 4000), (97, 13)):
        found = process(torch.randint(0, 256, (3, height, width), dtype=torch.uint8), return_tensors="pt")
        expected = reference.model.encoder.get_image_features(found.pixel_values, found.image_position_ids)
        columns, rows = (found.image_position_ids[0].amax(0) + 1).tolist()
        pixels = (found.pixel_values[0, : rows * columns] * 255).round().to(torch.uint8)
        assert (expected.pooler_output - ours.see(pixels, rows, columns)).abs().max() < TOLERANCE


@torch.no_grad()
def test_images_must_match_the_runs_of_image_tokens(tmp_path):
    reference, ours = load_pair(tmp_path, 2)
    _, given = oracle.picture(reference.config.vision_config, 2, 2)
    ids_BS = prompt(reference, (2, 1), [5])
    with pytest.raises(InputError, match=r"runs of \[5\] image tokens, but the images have \[4\]"):
        ours.encode(ids_BS, ours.new_cache(1, 64), images=[ours.see(*given)])
    with pytest.raises(InputError, match="must be .* pixels"):
        ours.see(given[0][1:], *given[1:])


@torch.no_grad()
def test_a_model_without_its_tower_says_so(tmp_path):
    oracle.checkpoint(tmp_path / "model", 0, config=oracle.seeing_config(0))
    ours = load_weights(open_source(tmp_path / "model"), torch.device("cpu"), torch.float32, text_only=True)
    with pytest.raises(InputError, match="no vision tower"):
        ours.see(torch.zeros(1, 1), 1, 1)

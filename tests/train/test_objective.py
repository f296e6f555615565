"""The training loss for every option, compared with a computation by `transformers`.

B examples, S text of all examples, K canvases of all examples, C canvas, V vocabulary.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import checkpoint_name
from gesso.checkpoint.source import open_source
from gesso.diffusion.noise import HashSource
from gesso.errors import InputError
from gesso.train import head
from gesso.train.batch import canvases, collate, conditioned_examples, corrupt
from gesso.train.data import Example
from gesso.train.objective import Objective
from gesso.train.recipe import ObjectiveSettings
from tests import oracle

CPU = torch.device("cpu")
TIED = [seed for seed in range(24) if oracle.random_config(seed).tie_word_embeddings]


# Together: full and sliding layers, one and several key heads and experts per token, long and short canvases.
@pytest.fixture(params=TIED[2:4])
def pair(request, tmp_path):
    reference = oracle.checkpoint(tmp_path / "model", request.param)
    return reference, load_weights(open_source(tmp_path / "model"), CPU, torch.float32)


def examples(config, count=5, seed=0):
    """Return prompts and responses of lengths below and above canvas and window, and an example with two responses."""
    generator = torch.Generator().manual_seed(seed)
    length, window = config.canvas_length, config.sliding_window
    shapes = [(1, 3), (window, length), (2 * window + 1, 2 * length + 3), (5, 3 * length), (window - 1, 1)]
    found = []
    for i, (prompt, response) in enumerate(shapes[:count]):
        tokens = torch.randint(0, config.vocab_size, (prompt + response,), generator=generator).tolist()
        found.append(Example(tuple(tokens), ((prompt, prompt + response),), "test", i))
    two = torch.randint(0, config.vocab_size, (30,), generator=generator).tolist()
    found.append(Example(tuple(two), ((4, 9), (20, 30)), "test", 9))
    return found


def make(config, settings, rows, seed=3, draws=1, first=100, **options):
    batch = collate(
        rows, canvas_length=config.canvas_length, per_example=settings.per_example, eos=1, pad=0,
        learn_text=settings.learn_text, seed=seed, first=first, draws=draws, **options,
    )  # fmt: skip
    noise = corrupt(batch, config.vocab_size, conditioning=settings.self_conditioning, seed=seed, first=first)
    return batch, noise


def reference_losses(reference, config, settings, rows, batch, noise, seed=3):
    """Compute the losses one canvas at a time, with the passes and the cache of the reference."""
    decoder, encoder = [], []
    for b, example in enumerate(rows):
        draws = [HashSource().at(seed, 100 + b, use, CPU) for use in range(4)]
        (u_time,) = draws[1].uniform(1).tolist()
        clean_KC, at_K = batch.clean_KC[batch.owner_K == b], batch.layout.at_K[batch.layout.owner_K == b].tolist()
        size = clean_KC.numel()
        t_K = 1e-3 + (1 - 1e-3) * ((u_time + 0.6180339887 * torch.arange(len(at_K))) % 1)
        replaced = draws[2].uniform(size) < t_K.repeat_interleave(config.canvas_length)
        uniform = draws[3].tokens(size, config.vocab_size)
        losses = []
        for k, (start, clean) in enumerate(zip(at_K, clean_KC, strict=True)):
            part = slice(k * config.canvas_length, (k + 1) * config.canvas_length)
            noisy = torch.where(replaced[part], uniform[part], clean)
            cache = oracle.new_cache(reference)
            reference.model.encoder(input_ids=torch.tensor([example.tokens[:start]]), past_key_values=cache)
            arguments = {"decoder_input_ids": noisy[None], "past_key_values": cache}
            before = None
            if b in noise.conditioned:
                with torch.no_grad():
                    before = reference(**arguments).logits
            logits = reference(**arguments, self_conditioning_logits=before).logits[0]
            losses.append(F.cross_entropy(logits, clean))
        decoder.append(torch.stack(losses).mean())
        hidden = reference.model.encoder(input_ids=torch.tensor([example.tokens])).last_hidden_state[0]
        raw = reference.lm_head(hidden).float()
        logits = 30 * torch.tanh(raw / 30)
        spans = [(1, len(example.tokens))] if settings.encoder_on == "all" else example.spans
        wanted = [i for start, end in spans for i in range(max(start, 1), end)]
        tokens = torch.tensor(example.tokens)
        encoder.append(F.cross_entropy(logits[[i - 1 for i in wanted]], tokens[wanted]))
    return torch.stack(decoder), torch.stack(encoder)


OPTIONS = [
    {},
    {"canvases_per_example": "all"},
    {"canvases_per_example": 2, "encoder_on": "all"},
    {"self_conditioning": 1.0},
    {"self_conditioning": 0.0, "encoder_weight": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
def test_loss_equals_reference_canvas_by_canvas(pair, options):
    reference, model = pair
    settings = ObjectiveSettings(**options)
    rows = examples(model.config)
    batch, noise = make(model.config, settings, rows)
    losses = Objective(model, settings)(batch, noise)
    decoder_B, encoder_B = reference_losses(reference, model.config, settings, rows, batch, noise)
    assert (losses.decoder_B - decoder_B).abs().max() < 1e-5 * decoder_B.abs().max()
    assert (losses.encoder_B - encoder_B).abs().max() < 1e-5 * encoder_B.abs().max()
    total = decoder_B + settings.encoder_weight * encoder_B
    assert (losses.total_B - total).abs().max() < 2e-5 * total.abs().max()


def test_canvas_right_after_a_text_as_long_as_the_window_equals_reference(pair):
    """It sees one token less than the window, so the window matters although the text fits into it."""
    reference, model = pair
    settings = ObjectiveSettings(encoder_weight=0.0)
    rows = [examples(model.config)[1]]
    batch, noise = make(model.config, settings, rows)
    assert batch.layout.width_B.tolist() == batch.layout.at_K.tolist() == [model.config.sliding_window]
    decoder_B, _ = reference_losses(reference, model.config, settings, rows, batch, noise)
    torch.testing.assert_close(Objective(model, settings)(batch, noise).decoder_B, decoder_B, rtol=1e-5, atol=0)


def test_gradients_equal_reference(pair):
    reference, model = pair
    settings = ObjectiveSettings(canvases_per_example="all")
    rows = examples(model.config, count=3)
    batch, noise = make(model.config, settings, rows)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    Objective(model, settings)(batch, noise).total_B.mean().backward()
    decoder_B, encoder_B = reference_losses(reference, model.config, settings, rows, batch, noise)
    (decoder_B + encoder_B).mean().backward()
    theirs = dict(reference.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        if "layer_scalars" in name:
            continue  # buffers in the reference
        expected = theirs[checkpoint_name(name)].grad
        assert (parameter.grad - expected).abs().max() < 1e-4 * expected.abs().max() + 1e-7, name


def test_gradients_unchanged_by_checkpointing(pair):
    _, model = pair
    settings = ObjectiveSettings()
    batch, noise = make(model.config, settings, examples(model.config))
    grads = []
    for recompute in (False, True):
        for parameter in model.parameters():
            parameter.requires_grad_(True).grad = None
        Objective(model, settings, checkpoint_activations=recompute)(batch, noise).total_B.mean().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_soft_embedding_is_zero_without_self_conditioning(pair):
    """Zero logits would give the mean embedding, a known mistake of other implementations."""
    _, model = pair
    seen = []
    condition = model.self_conditioning.condition
    model.self_conditioning.condition = lambda e, soft: (seen.append(soft.clone()), condition(e, soft))[1]
    rows = examples(model.config)
    batch, noise = make(model.config, ObjectiveSettings(), rows)
    mixed = replace(noise, conditioned=np.arange(0, len(rows), 2))
    Objective(model, ObjectiveSettings())(batch, mixed)
    soft_KX = seen[-1].view(len(batch.owner_K), -1)
    assert [bool((soft_X == 0).all()) for soft_X in soft_KX] == (batch.owner_K % 2 == 1).tolist()


def test_prediction_and_expected_embedding_are_compiled_apart(pair):
    """Together, they would share the unpacked table of a quantized model, and all of it would be kept meanwhile."""
    _, model = pair
    objective, graphs = Objective(model, ObjectiveSettings()), []

    def capture(graph, inputs):
        graphs.append([node.name for node in graph.graph.nodes if node.name in ("linear", "matmul")])
        return graph.forward

    hidden_RH = torch.randn(3, model.config.hidden_size)
    expected = objective.expected_embedding(hidden_RH)
    objective.compile_parts(backend=capture)
    assert torch.equal(objective.expected_embedding(hidden_RH), expected)
    assert graphs == [["linear"], ["matmul"]]


def test_canvas_attends_only_to_itself_and_the_text_before_it(pair):
    """Hidden states of a canvas change only with tokens that it attends to."""
    _, model = pair
    settings = ObjectiveSettings(canvases_per_example="all")
    rows = [examples(model.config)[2]]
    batch, noise = make(model.config, settings, rows)
    objective = Objective(model, settings)
    zeros = torch.zeros(*noise.noisy_KC.shape, model.config.hidden_size)

    def hidden(text_S, noisy_KC):
        return objective.hidden(batch.layout, objective.embed(text_S), objective.embed(noisy_KC), zeros)[1]

    base = hidden(batch.text_S, noise.noisy_KC)
    start = int(batch.layout.at_K[1])
    other = batch.text_S.clone()
    other[start:] = (other[start:] + 1) % model.config.vocab_size
    assert torch.allclose(base[:2], hidden(other, noise.noisy_KC)[:2], atol=1e-5)
    neighbour = noise.noisy_KC.clone()
    neighbour[0] = (neighbour[0] + 1) % model.config.vocab_size
    assert torch.allclose(base[1], hidden(batch.text_S, neighbour)[1], atol=1e-5)
    before = batch.text_S.clone()
    before[start - 1] = (before[start - 1] + 1) % model.config.vocab_size
    assert not torch.allclose(base[1], hidden(before, noise.noisy_KC)[1], atol=1e-5)


def test_last_canvas_of_a_response_is_filled_with_eos():
    example = Example(tuple(range(10, 30)), ((3, 12), (15, 16)), "test", 1)
    assert canvases(example, 4, eos=1) == [
        (3, [13, 14, 15, 16]),
        (7, [17, 18, 19, 20]),
        (11, [21, 1, 1, 1]),
        (15, [25, 1, 1, 1]),
    ]


def test_canvas_choice_is_uniform_and_deterministic():
    example = Example(tuple(range(100)), ((1, 41),), "test", 1)

    def start(first):
        chosen = {"per_example": 1, "seed": 5, "first": first}
        rows = collate([example], canvas_length=8, eos=1, pad=0, learn_text="response", **chosen)
        return int(rows.layout.at_K[0])

    found = [start(i) for i in range(1000)]
    assert found[:50] == [start(i) for i in range(50)]
    counts = [found.count(at) for at in (1, 9, 17, 25, 33)]
    assert sum(counts) == 1000
    assert all(150 < count < 250 for count in counts)


def threes(examples, canvases=1, length=64):
    """Return a batch whose canvases contain the token 3 only."""
    rows = [Example((2,) + (3,) * (canvases * length), ((1, 1 + canvases * length),), "test", 1)] * examples
    return collate(rows, canvas_length=length, per_example=None, eos=1, pad=0, learn_text="response", seed=0, first=0)


def test_noise_replaces_tokens_with_probability_t():
    noise = corrupt(threes(400), 1000, conditioning=0.5, seed=1, first=0)
    changed_K = (noise.noisy_KC != 3).float().mean(-1)
    assert (changed_K - noise.t_K).abs().mean() < 0.05
    assert abs(noise.t_K.mean().item() - 0.5) < 0.05
    assert noise.t_K.min() >= 1e-3
    assert (noise.conditioned // 2).tolist() == list(range(200)), "one of every two examples"
    again = corrupt(threes(2), 1000, conditioning=0.5, seed=1, first=10)
    assert torch.equal(again.noisy_KC, noise.noisy_KC[10:12]), "noise does not depend on the batch"


@pytest.mark.parametrize("turns", [2, 3, 4])
def test_self_conditioning_does_not_depend_on_the_turn_of_a_batch(turns):
    """Canvas lengths, draws and prompt lengths take turns, and batches may have one example."""
    chosen = [len(conditioned_examples(0.5, seed=1, first=n, count=1)) for n in range(120 * turns)]
    for turn in range(turns):
        assert 40 < sum(chosen[turn::turns]) < 80, f"turn {turn}"


@pytest.mark.parametrize(("share", "size", "count"), [(0.0, 4, 0), (0.25, 8, 2), (0.3, 10, 3), (1.0, 3, 3)])
def test_batches_have_equal_numbers_of_self_conditioned_examples(share, size, count):
    for batch in range(20):
        assert len(conditioned_examples(share, seed=1, first=batch * size, count=size)) == count


def test_noise_is_drawn_on_the_device_of_the_canvases():
    """The seed of a run is an integer, but the numbers of its examples are a tensor on the model's device."""
    batch = threes(3, 2, 8).to(torch.device("meta"))  # rejects tensors on the CPU, as a GPU does
    noise = corrupt(batch, 1000, conditioning=0.5, seed=1, first=0, pinned=0.5)
    assert noise.t_K.device == noise.noisy_KC.device == batch.clean_KC.device
    assert noise.noisy_KC.shape == (6, 8)


def test_pinned_share_has_noise_in_one_section_only():
    batch = threes(400, canvases=2)
    whole = corrupt(batch, 1000, conditioning=0.5, seed=1, first=0).noisy_KC.view(400, 2, 64)
    half = corrupt(batch, 1000, conditioning=0.5, seed=1, first=0, pinned=0.5).noisy_KC.view(400, 2, 64)
    same_B = (half == whole).flatten(1).all(-1)
    assert 150 < same_B.sum() < 250
    for noisy_KC, free_KC in zip(half[~same_B], whole[~same_B], strict=True):
        places = (noisy_KC != 3).any(0).nonzero().flatten().tolist()
        if places:
            inside = slice(places[0], places[-1] + 1)
            assert torch.equal(noisy_KC[:, inside], free_KC[:, inside]), "the noise inside the section is unchanged"


def test_draws_set_the_noise_levels_per_canvas():
    rows = [Example(tuple(range(10, 30)), ((12, 20),), "test", i) for i in range(500)]
    shape = {"canvas_length": 8, "per_example": 1, "eos": 1, "pad": 0, "learn_text": "all", "seed": 0, "first": 0}
    batch = collate(rows, **shape, draws=4)
    assert batch.clean_KC.shape == (2000, 8) and (batch.layout.at_K == 12).all()
    t_B4 = corrupt(batch, 1000, conditioning=0.5, seed=1, first=0).t_K.view(500, 4)
    alone_B = corrupt(collate(rows, **shape), 1000, conditioning=0.5, seed=1, first=0).t_K
    assert torch.equal(t_B4[:, 0], alone_B), "the first level is the same with one draw"
    assert (t_B4.sort(-1).values.diff(dim=-1) > 0.1).all(), "levels are far apart"
    assert ((t_B4 * 4).long().flatten().bincount(minlength=4) - 500).abs().max() < 75, "levels are evenly spread"


def test_text_without_targets_or_canvases_is_left_out():
    rows = [Example(tuple(range(30)), ((10, 30),), "test", 1), Example(tuple(range(12)), ((4, 12),), "test", 2)]
    batch = collate(
        rows, canvas_length=8, per_example=None, eos=1, pad=0, learn_text="none", seed=0, first=0, multiple=16
    )
    assert batch.layout.at_K.tolist() == [10, 18, 26, 4] and batch.owner_K.tolist() == [0, 0, 0, 1]
    assert batch.valid_S.view(2, 32).sum(-1).tolist() == [26, 4]
    assert not len(batch.target_R)


def test_example_without_targets_has_zero_loss(pair):
    _, model = pair
    rows = [Example((5,), ((0, 1),), "test", 1)]
    batch, noise = make(model.config, ObjectiveSettings(), rows)
    losses = Objective(model, ObjectiveSettings())(batch, noise)
    assert losses.encoder_B.tolist() == [0.0]
    assert losses.decoder_B.isfinite().all()
    assert head.token_losses(torch.zeros(0, 4), torch.zeros(7, 4), torch.zeros(0, dtype=torch.long), 30.0).shape == (0,)


def test_balance_loss_is_one_for_even_routing_and_more_otherwise(pair):
    _, model = pair
    settings = ObjectiveSettings(balance_weight=0.1)
    batch, noise = make(model.config, settings, examples(model.config))
    losses = Objective(model, settings)(batch, noise)
    plain = Objective(model, ObjectiveSettings())(batch, noise)
    assert losses.balance >= 1.0 - 1e-5
    torch.testing.assert_close(losses.total_B, plain.total_B + 0.1 * losses.balance)
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.router.proj.weight.zero_()  # every expert equally likely
    even = Objective(model, settings)(batch, noise).balance
    assert abs(even.item() - 1.0) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"canvases_per_example": 0},
        {"canvases_per_example": "some"},
        {"encoder_on": "prompt"},
        {"self_conditioning": 1.5},
        {"encoder_weight": -1.0},
        {"balance_weight": float("nan")},
        {"pinned": -0.1},
        {"canvas_lengths": (64, 0)},
        {"draws": ()},
    ],
)
def test_invalid_objective_setting_is_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        ObjectiveSettings(**options)


def test_untied_model_is_rejected(tmp_path):
    seed = next(seed for seed in range(24) if seed not in TIED)
    oracle.checkpoint(tmp_path / "model", seed)
    model = load_weights(open_source(tmp_path / "model"), CPU, torch.float32)
    with pytest.raises(InputError, match="share their weights"):
        Objective(model, ObjectiveSettings())

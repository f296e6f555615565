"""The loss under a frozen head, whose gradient is computed in the forward pass, against autograd."""

import pytest
import torch

from gesso.checkpoint.quantize.formats import FORMATS
from gesso.train import head

T, H, V = 23, 32, 96


ROWS = 5  # at once


@pytest.fixture
def case():
    torch.manual_seed(0)
    return torch.randn(T, H), torch.randn(V, H), torch.randint(V, (T,))


def losses_and_gradient(hidden, table, target, certainty=None, rows=ROWS):
    hidden = hidden.clone().requires_grad_()
    losses = head.token_losses(hidden, table, target, 30.0, certainty, rows=rows)
    (losses * torch.linspace(0.1, 2.0, len(losses))).sum().backward()
    return losses.detach(), hidden.grad


def test_losses_under_a_frozen_head_equal_those_under_a_trained_one(case):
    hidden, table, target = case
    frozen = losses_and_gradient(hidden, table, target)
    trained = losses_and_gradient(hidden, table.clone().requires_grad_(), target, rows=None)  # all at once
    for found, expected in zip(frozen, trained, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_losses_under_a_quantized_head_equal_those_under_its_unpacked_weights(case):
    hidden, table, target = case
    packed = FORMATS["fp8"].quantize("head", table)
    for found, expected in zip(
        losses_and_gradient(hidden, packed, target), losses_and_gradient(hidden, packed.dense(), target), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_logits_of_all_tokens_are_never_in_memory_at_once(case):
    hidden, table, target = case
    table.requires_grad_()
    sizes = []

    def of_chunk(hidden_RH, *rest):
        sizes.append(len(hidden_RH))
        return head.chunk_loss(hidden_RH, *rest)

    parts = head.token_losses(hidden, table, target, 30.0, of_chunk=of_chunk, rows=ROWS)
    (gradient,) = torch.autograd.grad(parts.sum(), table)
    assert max(sizes) == ROWS < T
    whole = head.token_losses(hidden, table, target, 30.0)
    (expected,) = torch.autograd.grad(whole.sum(), table)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(gradient, expected)


def test_without_a_gradient_only_losses_are_computed(case):
    hidden, table, target = case
    found = head.token_losses(hidden, table, target, 30.0, rows=ROWS)
    assert not found.requires_grad
    torch.testing.assert_close(found, losses_and_gradient(hidden, table, target)[0])


@pytest.mark.parametrize("frozen", [True, False])
def test_certainty_term_is_the_entropy_where_the_argmax_is_right_and_zero_elsewhere(case, frozen):
    hidden, table, target = case
    logits = 30 * torch.tanh(hidden @ table.T / 30)
    target[::2] = logits.argmax(-1)[::2]
    right = logits.argmax(-1) == target
    assert 0 < right.sum() < T
    table = table if frozen else table.clone().requires_grad_()
    weight = torch.rand(T)
    plain = losses_and_gradient(hidden, table, target)
    forced = losses_and_gradient(hidden, table, target, weight)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(forced[0] - plain[0], torch.where(right, weight * entropy, 0.0), rtol=1e-4, atol=1e-4)
    assert torch.equal(forced[0][~right], plain[0][~right]) and torch.equal(forced[1][~right], plain[1][~right])
    assert (forced[1][right] != plain[1][right]).any(-1).all(), "its gradient reaches every right prediction"


def test_certainty_term_has_the_same_gradient_under_a_frozen_head(case):
    hidden, table, target = case
    target[::2] = (hidden @ table.T).argmax(-1)[::2]
    certainty = torch.rand(T) * 3
    frozen = losses_and_gradient(hidden, table, target, certainty)
    trained = losses_and_gradient(hidden, table.clone().requires_grad_(), target, certainty)
    for found, expected in zip(frozen, trained, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

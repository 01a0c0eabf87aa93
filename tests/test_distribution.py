import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from advnas.distribution import Distribution, Theta

LOGITS = torch.tensor([[0.0, math.log(2), -torch.inf], [0.0, math.log(2), math.log(3)]])
PROBABILITIES = torch.tensor([[1 / 3, 2 / 3, 0.0], [1 / 6, 2 / 6, 3 / 6]])
DRAWS = 20_000


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_probabilities_are_the_softmax_and_padding_has_none():
    assert torch.allclose(Distribution(LOGITS).probabilities, PROBABILITIES)


def test_samples_follow_the_probabilities_exactly(generator):
    draws = Distribution(LOGITS.expand(DRAWS, 2, 3)).sample(generator)
    assert torch.equal(draws.sum(-1), torch.ones(DRAWS, 2))
    assert torch.allclose(draws.mean(0), PROBABILITIES, atol=0.01)
    assert draws[:, 0, 2].sum() == 0


def test_no_operation_is_ever_lost_near_convergence(generator):
    """A draw that is biased by clipping would give the rare operation far more than its probability."""
    draws = Distribution(torch.tensor([[0.0, 12.0]]).expand(DRAWS, 1, 2)).sample(generator)
    assert draws[:, 0, 0].sum() <= 3  # 20,000 e^-12 = 0.12 expected


def test_the_two_largest_perturbed_logits_are_two_draws_without_replacement(generator):
    pairs = Distribution(LOGITS[1].expand(DRAWS, 3)).perturbed(generator).topk(2).indices
    p = PROBABILITIES[1].tolist()
    for j, k in itertools.permutations(range(3), 2):
        frequency = ((pairs[:, 0] == j) & (pairs[:, 1] == k)).float().mean().item()
        assert frequency == pytest.approx(p[j] * p[k] / (1 - p[j]), abs=0.01)


def test_equal_generators_give_equal_draws():
    one, other = (Distribution(LOGITS).sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)


def test_sampling_leaves_the_global_random_state_alone(generator):
    before = torch.get_rng_state()
    Distribution(LOGITS).sample(generator)
    assert torch.equal(before, torch.get_rng_state())


def test_the_mode_is_the_most_likely_operation_and_ties_go_to_the_first():
    assert Distribution(LOGITS).mode().argmax(-1).tolist() == [1, 2]
    assert Distribution(torch.ones(2, 3)).mode().argmax(-1).tolist() == [0, 0]


def test_entropy_counts_only_real_candidates():
    uniform = Distribution(torch.tensor([[1.0, 1.0, -torch.inf], [1.0, 1.0, 1.0], [0.0, -torch.inf, -torch.inf]]))
    assert torch.allclose(uniform.entropy(), torch.tensor([math.log(2), math.log(3), 0.0]), atol=1e-6)


def test_the_gradient_of_the_entropy_is_finite_at_padding():
    logits = LOGITS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Distribution(logits).entropy().sum(), logits)
    assert slope.isfinite().all()


@settings(deadline=None, derandomize=True, max_examples=30)
@given(some.lists(some.floats(-5, 5, width=32), min_size=2, max_size=5), some.data())
def test_the_score_is_the_gradient_of_the_log_probability(row, data):
    column = data.draw(some.integers(0, len(row) - 1))
    logits = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    chosen = nn.functional.one_hot(torch.tensor([column]), len(row)).double()
    (expected,) = torch.autograd.grad(logits.log_softmax(-1)[0, column], logits)
    assert torch.allclose(Distribution(logits).score(chosen), expected)


def test_theta_starts_at_one_and_is_padded_to_the_largest_decision():
    theta = Theta((2, 3))
    assert theta.logits().tolist() == [[1.0, 1.0, -math.inf], [1.0, 1.0, 1.0]]
    assert theta.logits().is_leaf
    assert theta.logits().requires_grad
    assert Theta((2, 3), batch=(4, 5)).logits().shape == (4, 5, 2, 3)


def test_assign_writes_into_the_parameters_that_the_optimiser_holds():
    theta = Theta((2, 3))
    held = list(theta.parameters)
    theta.assign(LOGITS)
    assert torch.equal(theta.logits(), LOGITS)
    assert all(one is other for one, other in zip(held, theta.parameters, strict=True))


def test_a_decision_that_was_not_reached_gets_no_gradient_and_no_momentum_or_decay():
    theta = Theta((2, 3))
    optimizer = torch.optim.Adam(theta.parameters, lr=0.1, weight_decay=0.1)
    theta.set_gradient(torch.ones(2, 3), torch.tensor([True, True]))
    optimizer.step()
    before = theta.logits()
    theta.set_gradient(torch.ones(2, 3), torch.tensor([True, False]))
    optimizer.step()
    assert theta.parameters[1].grad is None
    assert not torch.equal(theta.logits()[0], before[0])
    assert torch.equal(theta.logits()[1], before[1])

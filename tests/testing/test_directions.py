"""Directions: of a strategy's estimates next to the true gradient of the expected reward, at uniform theta."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, SearchSpace
from advnas.randomness import generator, seeded
from advnas.strategies.parsec import Parsec
from advnas.testing.directions import Truth, clip_to_median, collect, cosine, direction, reward_gradient
from advnas.testing.enumeration import Enumeration, every_architecture, network_objective


def scaled(factor):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, factor)
    return layer


class Chain(nn.Module):
    """Two factors in series whose product should be 1: the larger one is always better."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Choice({str(f): scaled(f) for f in (0.4, 0.7, 1.0)}) for _ in range(2)))

    def forward(self, x):
        return self.layers(x)


def loss_of(model):
    one = torch.ones(1, 1, dtype=next(model.parameters()).dtype)
    return F.mse_loss(model(one), one)


@pytest.fixture
def model():
    return Chain()


def truth_of(model):
    space = SearchSpace(model)
    chosen = every_architecture(space.sizes)
    objective = network_objective(space, loss_of)
    logits = torch.zeros(len(space), max(space.sizes), dtype=torch.float64)
    rewards = Enumeration(logits, objective).rewards
    return Truth.of(chosen, rewards, exact=True)


def test_the_gradient_of_all_architectures_is_that_of_the_enumeration():
    sizes = (2, 3, 4)
    chosen = every_architecture(sizes)
    rewards = torch.randn(len(chosen), generator=generator(0), dtype=torch.float64)
    logits = torch.where(chosen.any(0), 0.0, -torch.inf).double()
    probabilities = torch.full((len(chosen),), 1 / len(chosen), dtype=torch.float64)
    by_score = torch.einsum("a,aij->ij", probabilities * rewards, chosen - logits.softmax(-1))
    assert torch.allclose(reward_gradient(chosen, rewards), by_score, atol=1e-12)


def test_a_sample_estimates_the_same_gradient_and_tells_how_well():
    chosen = every_architecture((4, 4, 4, 4))
    rewards = (chosen * torch.arange(16).view(4, 4)).sum((-2, -1)).double().square()
    exact = Truth.of(chosen, rewards, exact=True)
    rows = torch.randint(len(chosen), (200,), generator=generator(1))
    sample = Truth.of(chosen[rows], rewards[rows], exact=False)
    assert exact.split_half == 1
    assert 0.9 < sample.split_half < 1
    assert cosine(sample.gradient, exact.gradient) > 0.95
    assert (cosine(sample.replicates, exact.gradient) < cosine(sample.gradient, sample.gradient)).all()


def test_an_exact_estimator_has_cosine_one_without_error(model):
    truth = truth_of(model)
    found = direction(3 * truth.gradient.expand(10, -1, -1), truth)
    for figure in (found.mean, found.clipped, found.step):
        assert figure.value == pytest.approx(1)
        assert figure.error == pytest.approx(0, abs=1e-6)
    assert direction(-truth.gradient.expand(10, -1, -1), truth).mean.value == pytest.approx(-1)


def test_in_a_chain_contrast_points_uphill_and_the_advantage_downhill(model):
    """With y = product, A = 2 y (1 - y): largest for what is not good enough, 0 for what is perfect."""
    truth = truth_of(model)
    contrast = direction(collect(model, "contrast", [loss_of], steps=400), truth).mean
    advantage = direction(collect(model, "advantage", [loss_of], steps=400), truth).mean
    assert contrast.value - 3 * contrast.error > 0
    assert advantage.value + 3 * advantage.error < 0


def test_the_bootstrap_error_is_the_spread_of_repetitions(model):
    truth = truth_of(model)
    found = [direction(collect(model, "reinforce", [loss_of], steps=40, seed=s), truth).step for s in range(25)]
    spread = torch.tensor([figure.value for figure in found]).std().item()
    mean_error = sum(figure.error for figure in found) / len(found)
    assert mean_error == pytest.approx(spread, rel=0.4)


def test_collecting_changes_neither_theta_nor_weights_nor_randomness(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with seeded(0):
        expected = torch.rand(1)
    with seeded(0):
        one = collect(model, "proxyless", [loss_of], steps=20)
        assert torch.rand(1) == expected
    assert torch.equal(one, collect(model, "proxyless", [loss_of], steps=20))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_warm_up_steps_are_taken_and_discarded(model):
    whole = collect(model, "reinforce", [loss_of], steps=30)
    assert torch.equal(collect(model, "reinforce", [loss_of], steps=20, warmup=10), whole[10:])
    assert not whole[0].any()  # the baseline starts at the first reward


def test_strategies_that_gather_draws_give_fewer_estimates(model):
    assert len(collect(model, Parsec(minibatch_per_draw=True), [loss_of], steps=24)) == 3


def test_a_strategy_without_a_gradient_is_refused(model):
    with pytest.raises(ValueError, match="gave theta no gradient in 3 steps"):
        collect(model, "enas", [loss_of], steps=3)


def test_clipping_shortens_what_is_longer_than_the_median():
    estimates = torch.tensor([1.0, 2.0, 100.0]).view(3, 1, 1)
    assert clip_to_median(estimates).flatten().tolist() == [1, 2, 2]

"""The sums over all architectures themselves."""

import pytest
import torch

from advnas import strategies
from advnas.paper.problems import random_table, reinforce, small_network, small_network_problem
from advnas.testing.enumeration import Enumeration, every_architecture, random_logits


def test_the_probabilities_add_up_to_one():
    torch.testing.assert_close(random_table((3, 2, 4), seed=0).probabilities().sum().item(), 1.0)


def test_the_order_of_the_architectures_is_the_order_of_the_search_space():
    space, _ = small_network()
    listed = torch.stack([space.one_hot(architecture) for architecture in space.architectures()])
    torch.testing.assert_close(every_architecture(space.sizes), listed.double())


def test_the_rewards_are_those_of_the_derived_networks():
    space, loss_of = small_network()
    derived = [-loss_of(space.derive(architecture)).item() for architecture in space.architectures()]
    assert small_network_problem().rewards.tolist() == pytest.approx(derived)


def test_one_decision_is_a_space_too():
    torch.testing.assert_close(every_architecture([3]).squeeze(1), torch.eye(3, dtype=torch.float64))


def test_the_moments_are_those_of_many_samples():
    """The only sampled check here: 200 000 draws, so a tolerance of a few standard errors."""
    problem = random_table((3, 2), seed=1)
    estimates = reinforce(problem)
    exact = problem.moments(estimates)
    drawn = problem.probabilities().multinomial(
        200_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(estimates[drawn].mean(0), exact.mean, atol=5e-3, rtol=0)
    variance = estimates[drawn].flatten(1).var(0, correction=0).sum()
    torch.testing.assert_close(variance, exact.variance.sum(), atol=0, rtol=0.02)


@pytest.mark.parametrize("name", ["darts", "snas", "gdas", "proxyless", "parsec", "enas"])
def test_strategies_that_do_not_answer_single_draws_are_refused(name):
    with pytest.raises(ValueError, match=r"does not run one operation|gave no gradient"):
        random_table((3, 2), seed=0).estimates(strategies.get(name))


def test_single_precision_is_refused():
    problem = small_network_problem()
    with pytest.raises(ValueError, match="float64"):
        Enumeration(random_logits((2, 2), torch.Generator()).float(), problem.objective)

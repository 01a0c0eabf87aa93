"""The sums over all architectures themselves."""

import pytest
import torch

from advnas import strategies
from advnas.paper.problems import random_table, reinforce, small_network, small_network_problem
from advnas.strategies import Phase
from advnas.testing.enumeration import (
    Enumeration,
    active_pairs,
    every_architecture,
    feedback,
    ordered_rivals,
    random_logits,
    single_operations,
)


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
    drawn = problem.probabilities().multinomial(
        200_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(estimates.values[drawn].mean(0), estimates.mean, atol=5e-3, rtol=0)
    variance = estimates.values[drawn].flatten(1).var(0, correction=0).sum()
    torch.testing.assert_close(variance, estimates.variance.sum(), atol=0, rtol=0.02)


@pytest.mark.parametrize("name", ["darts", "snas", "gdas", "parsec", "enas"])
def test_strategies_that_do_not_answer_single_draws_are_refused(name):
    with pytest.raises(ValueError, match=r"does not run one operation|answers several|gave no gradient"):
        random_table((3, 2), seed=0).estimates(strategies.get(name))


def test_a_pair_with_both_gates_open_is_refused():
    with pytest.raises(ValueError, match="does not run one operation"):
        random_table((3, 2), seed=0).estimates(strategies.get("proxyless", both_active=True))


DRAWN = {
    "one rival": (strategies.get("contrast", rivals=1), ordered_rivals(1)),
    "two rivals": (strategies.get("contrast", rivals=2), ordered_rivals(2)),
    "all rivals": (strategies.get("contrast", rivals=None), ordered_rivals(3)),
    "a pair": (strategies.get("proxyless"), active_pairs),
    "alone": (strategies.get("advantage"), single_operations),
}


@pytest.mark.parametrize(("strategy", "outcomes"), DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_enumerated_is_what_the_strategy_draws(strategy, outcomes, size):
    """50,000 draws of one decision, padded to five candidates: the same outcomes, as often as stated."""
    logits = random_logits((size, 5), torch.Generator().manual_seed(3))[:1]
    many = logits.expand(50_000, 1, 5)
    drawn = strategy.draw(many, {}, Phase.ARCHITECTURE, None, torch.Generator().manual_seed(4))
    rivals = drawn.active * (1 - drawn.weights.detach()) if drawn.shares is None else drawn.shares
    seen = torch.cat([drawn.weights.detach(), rivals], -1).squeeze(1)
    stated = list(outcomes(logits[0, :size].softmax(-1).tolist(), 5))
    assert sum(outcome.probability for outcome in stated) == pytest.approx(1)
    matches = torch.stack(
        [((seen - torch.cat([each.chosen, each.rivals])).abs() < 1e-9).all(-1) for each in stated], -1
    )
    assert (matches.sum(-1) == 1).all()
    expected = torch.tensor([outcome.probability for outcome in stated], dtype=torch.float64)
    torch.testing.assert_close(matches.double().mean(0), expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("name", ["contrast", "proxyless"])
def test_running_all_rivals_at_once_gives_what_each_gives_alone(name):
    """Draws of the strategy, each run by itself with its own rival: their answers are among the enumerated."""
    problem, strategy = small_network_problem(), strategies.get(name)
    known, generator = problem.estimates(strategy).values, torch.Generator().manual_seed(5)
    for _ in range(60):
        draw = strategy.draw(problem.logits, {}, Phase.ARCHITECTURE, None, generator)
        seen = feedback(problem.objective, draw)
        alone = strategy.gradient(seen, draw, problem.logits, {})[0] * seen.reached.unsqueeze(-1)
        assert (known - alone).abs().amax((-2, -1)).min() < 1e-12


def test_single_precision_is_refused():
    problem = small_network_problem()
    with pytest.raises(ValueError, match="float64"):
        Enumeration(random_logits((2, 2), torch.Generator()).float(), problem.objective)

"""Theorem 1: how much one step of an unbiased estimator improves log J at least, for positive rewards."""

import math

import pytest
import torch

from advnas.paper import problems, theory

PROBLEMS = theory.positive_problems(60)


@pytest.mark.parametrize("name", theory.ESTIMATORS)
def test_the_bound_holds_for_positive_rewards(name):
    for problem in PROBLEMS:
        assert (problem.rewards > 0).all()
        estimates = theory.ESTIMATORS[name](problem)
        assert all(theory.margin(problem, estimates, step) > 0 for step in theory.STEPS)


@pytest.mark.parametrize("name", theory.ESTIMATORS)
def test_a_bound_with_a_quarter_in_place_of_a_half_holds_too(name):
    """The proof bounds Cov[a_i] by 1; the covariance of a one-hot vector has no eigenvalue above 1/2."""
    for problem in PROBLEMS:
        estimates = theory.ESTIMATORS[name](problem)
        assert all(theory.margin(problem, estimates, step, curvature=0.5) > 0 for step in theory.STEPS)


def test_no_covariance_of_a_one_hot_vector_has_an_eigenvalue_above_a_half():
    generator = problems.seeded(0)
    mu = (5 * torch.rand(1000, 4, generator=generator, dtype=torch.float64)).softmax(-1)
    covariance = torch.diag_embed(mu) - mu.unsqueeze(-1) * mu.unsqueeze(-2)
    assert torch.linalg.eigvalsh(covariance).max() <= 0.5


def test_the_estimator_with_less_variance_has_the_larger_bound():
    """The bound of two unbiased estimators differs by step^2 / 2 times the difference of their variances."""
    for problem in PROBLEMS:
        adv, base = problems.exact_advantage(problem), problems.reinforce(problem)
        bounds = [theory.improvement_bound(problem, estimates, 0.3) for estimates in (adv, base)]
        variances = [estimates.variance.sum().item() for estimates in (adv, base)]
        assert bounds[0] - bounds[1] == pytest.approx(0.3**2 / 2 * (variances[1] - variances[0]))


def test_which_estimator_that_is_depends_on_the_edges_and_the_baseline():
    """Random linear rewards: with b = 0 nearly always the advantage; with b = J only given enough edges."""
    share = theory.less_variance_share
    assert share(2, -1.0, centred=False) > 0.9
    assert share(4, -1.0, centred=True) > 0.95
    assert share(2, 0.0, centred=False) == 1.0
    assert share(2, 0.0, centred=True) < 0.05
    assert share(2, 0.0, centred=True) < share(4, 0.0, centred=True) < share(8, 0.0, centred=True)


def test_without_positive_rewards_the_bound_can_fail():
    """Rewards 1 and -0.9: J and all logarithms exist, and the improvement is a quarter of the bound."""
    problem = theory.two_armed((1.0, -0.9))
    estimates = problems.reinforce(problem)
    assert problem.expected_reward() > 0
    assert 0 < theory.improvement(problem, estimates, 1.0) < 0.3 * theory.improvement_bound(problem, estimates, 1.0)


def test_a_negative_expected_reward_has_no_logarithm():
    """As for every reward that is minus a positive loss."""
    problem = theory.two_armed((-1.0, -2.0))
    assert math.isnan(theory.improvement(problem, problems.reinforce(problem), 1.0))


@pytest.mark.parametrize("rewards", [(1.0, -0.9), (-1.0, -2.0), (-5.0, 3.0)])
@pytest.mark.parametrize("step", theory.STEPS)
def test_a_constant_added_to_the_reward_repairs_both(rewards, step):
    """The estimator may stay as it is: it is unbiased for J + c as well."""
    problem, shift = theory.two_armed(rewards), 0.1 - min(rewards)
    for estimator in theory.ESTIMATORS.values():
        estimates = estimator(problem)
        least = theory.improvement_bound(problem, estimates, step, shift=shift)
        assert theory.improvement(problem, estimates, step, shift=shift) >= least


def test_improvement_is_not_monotonic_for_any_step():
    """A long step makes the drawn architecture certain, and E[log R] < log E[R]."""
    problem = theory.two_armed((1.0, 2.0))
    change = theory.improvement(problem, problems.reinforce(problem), 100.0)
    assert change == pytest.approx(problem.rewards.log().mean().item() - math.log(1.5))
    assert change < 0

"""Theorem 2: the policy gradient with the exact advantage is unbiased. What that means for the approximate one."""

import pytest
import torch
from torch.nn import functional as F

from advnas.paper import problems, theory
from advnas.testing.enumeration import Enumeration, network_objective, random_logits

SIZES = [(2,), (3, 3), (3, 2, 4), (2, 1, 3, 2)]


def assert_unbiased(problem, estimates):
    torch.testing.assert_close(estimates.mean, problem.gradient, atol=1e-12, rtol=1e-10)


def assert_same(estimates, others):
    torch.testing.assert_close(estimates.values, others.values)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_the_exact_advantage_is_unbiased_for_any_rewards(sizes, seed):
    problem = problems.random_table(sizes, seed)
    assert_unbiased(problem, problems.exact_advantage(problem))


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_advantage_is_unbiased_on_a_network_with_tied_nested_and_zero_candidates(seed):
    problem = problems.small_network_problem(seed)
    assert len(problem.architectures) == 3 * 2 * 4
    assert_unbiased(problem, problems.exact_advantage(problem))


def test_it_stays_unbiased_when_the_minibatch_is_drawn_too():
    """E over a and V: the mean over all minibatches of the estimates is the gradient of the mean reward."""
    space, _ = problems.small_network()
    generator = problems.seeded(7)
    x, y = (problems.uniform(12, *rest, low=-1, high=1, generator=generator) for rest in ((4,), ()))
    logits = random_logits(space.sizes, generator)

    def problem(rows):
        return Enumeration(logits, network_objective(space, lambda model: F.mse_loss(model(x[rows]), y[rows])))

    batches = [problem(rows) for rows in torch.arange(12).split(4)]
    mean = torch.stack([problems.exact_advantage(batch).mean for batch in batches]).mean(0)
    torch.testing.assert_close(mean, problem(slice(None)).gradient, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("baseline", [-3.0, 0.0, 0.7, 100.0])
def test_reinforce_is_unbiased_with_any_constant_baseline(baseline):
    for problem in (problems.random_table((3, 2, 4), seed=1), problems.small_network_problem()):
        assert_unbiased(problem, problems.reinforce(problem, baseline))


def test_a_decision_off_the_drawn_path_may_learn_nothing_without_bias():
    """`inner` exists only inside one candidate of `outer`; where the other is drawn its estimate is 0."""
    problem = problems.small_network_problem()
    names = [decision.name for decision in problems.small_network()[0].decisions]
    bypassed = problem.architectures[:, names.index("outer"), 1] == 1
    estimates = problems.reinforce(problem)
    assert not estimates.values[bypassed, names.index("inner")].any()
    assert estimates.values[~bypassed, names.index("inner")].any()
    assert_unbiased(problem, estimates)


@pytest.mark.parametrize("seed", range(5))
def test_the_approximate_advantage_is_the_exact_one_for_a_linear_reward(seed):
    problem = problems.random_linear(4, 3, seed)
    assert_same(problems.approximate_advantage(problem), problems.exact_advantage(problem))


@pytest.mark.parametrize("sizes", SIZES)
def test_linear_in_each_decision_by_itself_is_enough(sizes):
    """The reward may multiply decisions, as long as its Taylor expansion in one a_i ends after one term."""
    problem = problems.random_table(sizes, seed=2)
    assert_same(problems.approximate_advantage(problem), problems.exact_advantage(problem))


def test_for_a_squared_error_the_approximation_charges_every_operation_its_squared_output():
    """r = -(y - sum of outputs)^2: exact - approximate = o_i^2, so E[delta] = grad J - E[o_i^2 (a_i - mu_i)]."""
    generator = problems.seeded(3)
    outputs = problems.uniform(3, 3, low=-1, high=1, generator=generator)
    problem = problems.squared_error(outputs, 1.0, random_logits((3, 3, 3), generator))
    mu = problem.logits.softmax(-1)
    charge = mu * (outputs.square() - (mu * outputs.square()).sum(-1, keepdim=True))
    mean = problems.approximate_advantage(problem).mean
    torch.testing.assert_close(mean, problem.gradient - charge)


def test_the_approximation_can_point_the_wrong_way():
    """Target 1, outputs 0 and 1.5: the second operation is better, and loses probability."""
    problem = theory.zero_or(1.5)
    assert problem.gradient[0, 1] > 0
    assert problems.approximate_advantage(problem).mean[0, 1] < 0
    assert theory.alignment(problem, problems.approximate_advantage(problem)) == pytest.approx(-1)


def test_the_approximation_is_silent_where_the_operation_already_fits():
    """Target 1, outputs 0 and 1: dr/dO = 0 at the better operation, so its advantage is 0."""
    problem = theory.zero_or(1.0)
    assert problem.gradient[0, 1] > 0
    assert not problems.approximate_advantage(problem).values.any()


@pytest.mark.parametrize(
    ("problem", "bias", "cosine"),
    [
        (theory.random_squared_error, 0.157, 0.998),
        (problems.small_network_problem, 0.384, 0.976),
        (lambda: problems.cell_problem(problems.two_convolutions)[1], 0.777, 0.630),
        (lambda: problems.cell_problem(problems.convolution_or_skip)[1], 0.410, 0.994),
    ],
)
def test_the_bias_of_the_approximation_on_stated_examples(problem, bias, cosine):
    problem = problem()
    estimates = problems.approximate_advantage(problem)
    assert theory.relative_bias(problem, estimates) == pytest.approx(bias, abs=5e-4)
    assert theory.alignment(problem, estimates) == pytest.approx(cosine, abs=5e-4)


def test_the_rule_for_zero_operations_gives_up_unbiasedness():
    """On purpose: a drawn zero operation is told the worst average in place of its own advantage, which is 0."""
    problem = problems.small_network_problem()
    space = problems.small_network()[0]
    ruled = problems.with_zero_rule(problem, space.zeros)
    plain = problems.approximate_advantage(problem)
    drew_zero = (problem.architectures * space.zeros).any(-1)
    assert not plain.values[drew_zero].any()
    assert ruled.values[drew_zero].any()
    torch.testing.assert_close(ruled.values[~drew_zero], plain.values[~drew_zero])
    assert theory.relative_bias(problem, ruled) > 0.5

"""The section "Variance Reduction Effect: An Example": a reward that is a sum of one term an edge."""

import pytest
import torch

from advnas.paper import problems, theory
from advnas.testing.enumeration import random_logits


def example(seed, edges=3, operations=3, low=-1.0):
    generator = problems.seeded(seed)
    coefficients = problems.uniform(edges, operations, low=low, high=1.0, generator=generator)
    return coefficients, problems.linear_problem(coefficients, random_logits((operations,) * edges, generator))


def centred(seed):
    """Coefficients shifted so that every edge's expected reward is 0."""
    coefficients, problem = example(seed)
    mean = (coefficients * problem.logits.softmax(-1)).sum(-1, keepdim=True)
    return coefficients - mean, problems.linear_problem(coefficients - mean, problem.logits)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("edge", range(3))
def test_the_corrected_formulas_hold(seed, edge):
    coefficients, problem = example(seed)
    adv = problems.exact_advantage(problem)
    for baseline in (0.0, 0.8, problem.expected_reward().item()):
        base = problems.reinforce(problem, baseline)
        formulas = theory.corrected_formulas(coefficients, problem.logits, edge, baseline=baseline)
        assert formulas.squared_norm == pytest.approx(problem.gradient[edge].square().sum().item())
        assert formulas.adv == pytest.approx(adv.variance[edge].item())
        assert formulas.base == pytest.approx(base.variance[edge].item())


def test_the_printed_squared_norm_is_not_zero_for_a_constant_reward():
    """Two operations, both worth 1, mu = 1/2: grad J = 0, printed 1/8."""
    problem = theory.two_armed((1.0, 1.0))
    printed = theory.printed_formulas(torch.ones(1, 2).double(), problem.logits, 0)
    assert printed.squared_norm == pytest.approx(1 / 8)
    assert not problem.gradient.any()


@pytest.mark.parametrize("seed", range(5))
def test_the_printed_variance_of_the_advantage_is_its_second_moment(seed):
    coefficients, problem = example(seed)
    adv = problems.exact_advantage(problem)
    printed = theory.printed_formulas(coefficients, problem.logits, 0)
    assert printed.adv == pytest.approx(adv.second_moment[0].item())
    assert printed.adv > adv.variance[0] + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_the_printed_gap_holds_where_every_other_edge_is_worth_nothing_on_average(seed):
    coefficients, problem = centred(seed)
    adv, base = (f(problem) for f in (problems.exact_advantage, problems.reinforce))
    printed = theory.printed_formulas(coefficients, problem.logits, 0)
    gap = (base.variance - adv.variance)[0].item()
    assert printed.base - printed.adv == pytest.approx(gap)


def test_the_printed_gap_does_not_hold_elsewhere():
    coefficients, problem = theory.formula_example()
    adv, base = (f(problem) for f in (problems.exact_advantage, problems.reinforce))
    printed = theory.printed_formulas(coefficients, problem.logits, 0)
    assert printed.base - printed.adv > 2 * (base.variance - adv.variance)[0]


def test_the_gap_grows_linearly_with_the_edges_and_nothing_else_grows():
    """Edges worth 0 on average, REINFORCE with b = 0, as the paper says: 4/9 an edge here."""
    rows = [theory.edge_variances(theory.repeated_edge(edges, mean=0.0)) for edges in range(1, 7)]
    squared_norms, variances, gaps, _ = zip(*rows, strict=True)
    assert gaps == pytest.approx([4 / 9 * k for k in range(6)])
    assert squared_norms == pytest.approx([2 / 9] * 6)
    assert variances == pytest.approx([2 / 9] * 6)


def test_the_gap_grows_quadratically_where_edges_are_worth_something_on_average():
    rows = [theory.edge_variances(theory.repeated_edge(edges, mean=1.0)) for edges in range(1, 7)]
    gaps = torch.tensor([row[2] for row in rows])
    torch.testing.assert_close(gaps.diff(n=2), torch.full((4,), 4 / 3))
    assert [row[1] for row in rows] == pytest.approx([8 / 9] * 6)


def test_with_the_baseline_of_the_experiments_it_grows_linearly_from_a_lower_start():
    """b = J: 4/9 an edge again, but -2/3 with one edge. REINFORCE subtracts a mean, the advantage does not."""
    rows = [theory.edge_variances(theory.repeated_edge(edges, mean=1.0)) for edges in range(1, 7)]
    assert [row[3] for row in rows] == pytest.approx([4 / 9 * k - 2 / 3 for k in range(6)])


@pytest.mark.parametrize("seed", range(5))
def test_at_uniform_theta_the_other_edges_must_vary_more_than_this_one_is_worth(seed):
    """b = J: gap = (1 - |mu|^2) (sum_{k != i} V_k - rho_i^2), here with mu = 1/3."""
    coefficients, _ = example(seed)
    problem = problems.linear_problem(coefficients, torch.zeros(3, 3).double())
    spread, rho = coefficients.var(-1, correction=0), coefficients.mean(-1)
    expected = 2 / 3 * (spread.sum() - spread - rho.square())
    adv, base = (f(problem) for f in (problems.exact_advantage, problems.centred_reinforce))
    torch.testing.assert_close(base.variance - adv.variance, expected)


IN_SERIES = [name for name in theory.network_examples() if "chain" in name or "places" in name]


def test_on_networks_the_exact_advantage_has_the_least_variance_of_the_unbiased_estimators():
    """On those where no layer is indispensable; nothing proves it in general."""
    for name, problem in theory.network_examples().items():
        estimators = (problems.exact_advantage, problems.centred_reinforce, problems.reinforce)
        errors = [theory.relative_error(problem, estimator(problem)) for estimator in estimators]
        assert (errors == sorted(errors)) == (name not in IN_SERIES)


@pytest.mark.parametrize("name", IN_SERIES)
def test_in_series_the_exact_advantage_has_the_noise_of_a_network_without_a_layer(name):
    problem = theory.network_examples()[name]
    exact, centred = (f(problem).variance.sum() for f in (problems.exact_advantage, problems.centred_reinforce))
    assert exact > 5 * centred


@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize("edges", [1, 2, 3])
def test_the_variance_of_contrast_depends_neither_on_other_edges_nor_on_a_constant(edges, mean):
    problem = theory.repeated_edge(edges, mean)
    assert problems.contrast(problem).variance.tolist() == pytest.approx([2 / 9] * edges)


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_of_contrast_for_a_linear_reward(seed):
    """1/2 sum_ab mu_a mu_b (1 - mu_a) (r_b - r_a)^2 - |grad_i J|^2."""
    coefficients, problem = example(seed)
    mu = problem.logits.softmax(-1)
    squares = (coefficients[:, None, :] - coefficients[:, :, None]).square()
    second = 0.5 * torch.einsum("ia,ib,ia,iab->i", mu, mu, 1 - mu, squares)
    found = problems.contrast(problem).variance
    torch.testing.assert_close(found, second - problem.gradient.square().sum(-1))


def test_the_approximation_may_err_more_than_reinforce_with_a_baseline():
    problem = problems.small_network_problem()
    errors = [
        theory.relative_error(problem, f(problem))
        for f in (problems.approximate_advantage, problems.centred_reinforce)
    ]
    assert errors[0] > 1.5 * errors[1]


def test_equal_operations_are_the_worst_case_for_the_advantage():
    """Every architecture has the same reward: b = J leaves no variance at all, the advantage keeps its own."""
    problem = problems.linear_problem(torch.ones(3, 2).double(), torch.zeros(3, 2).double())
    assert problems.centred_reinforce(problem).variance.sum() == pytest.approx(0)
    assert problems.exact_advantage(problem).variance.sum() == pytest.approx(3 / 2)

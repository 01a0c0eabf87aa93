"""Contrast: the identity behind it, where it is unbiased and where not, and what it shares with its relatives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, SearchSpace, Zero
from advnas.paper import problems, series, theory
from advnas.testing.enumeration import Enumeration, network_objective, random_logits, reward_objective

SIZES = [(2,), (3, 3), (4, 2, 1, 3)]
RIVALS = [1, 2, None]


def random_quadratic(sizes, seed):
    """r = l^T w + w^T M w of all decisions' weights w together, with random l, M and theta."""
    generator = problems.seeded(seed)
    logits = random_logits(sizes, generator)
    linear = problems.uniform(logits.numel(), low=-1, high=1, generator=generator)
    square = problems.uniform(logits.numel(), logits.numel(), low=-1, high=1, generator=generator)

    def reward(weights):
        flat = weights.flatten()
        return linear @ flat + flat @ square @ flat

    return Enumeration(logits, reward_objective(reward))


def assert_unbiased(problem, estimates):
    torch.testing.assert_close(estimates.mean, problem.gradient, atol=1e-12, rtol=1e-10)


def assert_parallel(one, other):
    """Every row of the one is a multiple of the same row of the other."""
    cosines = F.cosine_similarity(one, other, dim=-1)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


# The identity


def expected_rewards(problem):
    """Q_ij = E[r | a_i = j]; 0 at padding."""
    joint = problem.probabilities()[:, None, None] * problem.architectures
    return torch.einsum("aij,a->ij", joint, problem.rewards) / joint.sum(0).clamp_min(1e-300)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_the_mean_of_all_pairs_for_any_rewards(sizes, seed):
    """grad_i J = E over a, b ~ p_i of 1/2 (Q_b - Q_a) (e_b - e_a)."""
    problem = problems.random_table(sizes, seed)
    mu, q = problem.logits.softmax(-1), expected_rewards(problem)
    eye = torch.eye(mu.shape[-1], dtype=torch.float64)
    pairs = torch.einsum("ia,ib,iab->iab", mu, mu, 0.5 * (q[:, None, :] - q[:, :, None]))
    mean = torch.einsum("iab,abk->ik", pairs, eye[None, :, :] - eye[:, None, :])
    torch.testing.assert_close(mean, problem.gradient)


# Where it is unbiased


@pytest.mark.parametrize("rivals", RIVALS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_unbiased_for_any_reward_that_is_quadratic_in_the_gates(sizes, seed, rivals):
    """At a random theta, with decisions of different sizes, products of decisions included."""
    problem = random_quadratic(sizes, seed)
    assert_unbiased(problem, problems.contrast(problem, rivals))


@pytest.mark.parametrize("seed", range(3))
def test_the_advantage_is_biased_for_the_same_rewards(seed):
    problem = random_quadratic((4, 2, 1, 3), seed)
    assert theory.relative_bias(problem, problems.approximate_advantage(problem)) > 0.1


@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_unbiased_for_a_table_of_any_rewards_interpolated_in_each_decision(sizes):
    problem = problems.random_table(sizes, seed=4)
    assert_unbiased(problem, problems.contrast(problem))


@pytest.mark.parametrize("rivals", [1, None])
def test_it_is_unbiased_on_a_network_with_choices_in_series_if_the_loss_is_quadratic_in_each_output(rivals):
    """Linear layers, a pooling, a skip connection and a zero operation, three times in a row; squared error."""
    problem = problems.linear_chain_problem()
    assert_unbiased(problem, problems.contrast(problem, rivals))


def test_tied_places_that_add_up_are_no_obstacle():
    """The outputs of one decision in three places enter a squared error as a sum: quadratic in the joint swap."""
    generator = problems.seeded(8)
    outputs = problems.uniform(3, 4, low=-1, high=1, generator=generator)

    def reward(weights):
        return -(1 - (outputs * weights).sum()).square()

    problem = Enumeration(random_logits((4,), generator), reward_objective(reward))
    assert_unbiased(problem, problems.contrast(problem))


@pytest.mark.parametrize("seed", range(3))
def test_more_rivals_leave_the_mean_as_it_is_and_have_less_variance(seed):
    for problem in (problems.random_table((4, 2, 3), seed), problems.small_network_problem(seed)):
        one, two, every = (problems.contrast(problem, rivals) for rivals in RIVALS)
        torch.testing.assert_close(two.mean, one.mean)
        torch.testing.assert_close(every.mean, one.mean)
        assert (every.variance <= two.variance + 1e-12).all()
        assert (two.variance <= one.variance + 1e-12).all()
        assert every.variance.sum() < two.variance.sum() < one.variance.sum()


def test_a_decision_off_the_drawn_path_learns_nothing_from_a_rival_that_contains_it():
    """All rivals: one draw per architecture, in their order."""
    problem = problems.small_network_problem()
    names = [decision.name for decision in problems.small_network()[0].decisions]
    bypassed = problem.architectures[:, names.index("outer"), 1] == 1
    values = problems.contrast(problem, rivals=None).values[:, names.index("inner")]
    assert not values[bypassed].any()
    assert values[~bypassed].any()


# Where it is not


def test_a_reward_of_third_order_can_turn_it_around():
    """r = -O/2 + 3 O^2 - 2 O^3: the output 1 is better than 0 by 1/2, and both slopes say worse by 1/2."""
    problem = problems.of_one_output(series.cubic, (0.0, 1.0))
    assert (problem.rewards[1] - problem.rewards[0]).item() == pytest.approx(0.5)
    assert series.believed_gain(problem) == pytest.approx(-0.5)
    assert theory.alignment(problem, problems.contrast(problem)) == pytest.approx(-1)


def test_the_error_of_third_order_is_that_of_the_trapezoid_rule():
    """r''' h^3 / 12 for a step h, here with r''' = -12."""
    problem = problems.of_one_output(series.cubic, (0.2, 0.7))
    gain = (problem.rewards[1] - problem.rewards[0]).item()
    assert series.believed_gain(problem) - gain == pytest.approx(-12 * 0.5**3 / 12)


def test_many_tied_places_can_turn_it_around():
    """Each place multiplies by 0.93 or 1.035, target 1: the second is better in 1 to 9 places."""
    for places in (1, 2, 3, 5, 9):
        problem = problems.tied_product(places, series.TIED_OUTPUTS)
        direction = theory.alignment(problem, problems.contrast(problem))
        assert problem.rewards[1] > problem.rewards[0]
        assert direction == pytest.approx(1 if places < 9 else -1)


def test_swaps_of_one_place_at_a_time_would_be_unbiased_there():
    """Places as decisions of their own: the same product is quadratic in each of them."""
    factors = torch.tensor(series.TIED_OUTPUTS, dtype=torch.float64)
    logits = random_logits((2,) * 5, problems.seeded(9))
    untied = Enumeration(logits, reward_objective(lambda weights: -(1 - (weights @ factors).prod()).square()))
    assert_unbiased(untied, problems.contrast(untied, rivals=None))


# The remedy: measure the swap


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_the_exact_contrast_is_unbiased_for_any_rewards(sizes, seed):
    problem = problems.random_table(sizes, seed)
    assert_unbiased(problem, problems.exact_contrast(problem))


def test_it_is_unbiased_on_a_network_with_tied_nested_and_zero_candidates():
    problem = problems.small_network_problem()
    assert_unbiased(problem, problems.exact_contrast(problem))


def test_it_is_unbiased_for_nine_tied_places_and_a_reward_of_third_order():
    for problem in (
        problems.tied_product(9, series.TIED_OUTPUTS),
        problems.of_one_output(series.cubic, (0.0, 1.0)),
    ):
        assert_unbiased(problem, problems.exact_contrast(problem))


# Against nothing and against a rival


def test_the_slope_is_largest_for_what_is_not_good_enough():
    """Target 1: the output 0.5 has the larger advantage, 0.9 the larger reward; the two swaps average to 0.24."""
    problem = problems.of_one_output(series.squared_distance, series.OUTPUTS)
    found = series.slopes(problem)
    assert found.diagonal().tolist() == pytest.approx([0.5, 0.18])
    assert (found[:, 1] - found[:, 0]).tolist() == pytest.approx([0.4, 0.08])
    assert series.believed_gain(problem) == pytest.approx(0.24)
    assert theory.alignment(problem, problems.approximate_advantage(problem)) == pytest.approx(-1)
    assert_unbiased(problem, problems.contrast(problem))


def test_behind_a_normalisation_every_advantage_is_zero_and_the_contrast_is_not():
    generator = problems.seeded(6)
    outputs = problems.uniform(3, 16, low=-1, high=1, generator=generator)
    problem = series.normalised(outputs, problems.uniform(16, low=-1, high=1, generator=generator))
    assert problems.approximate_advantage(problem).values.abs().max() < 1e-12
    assert problem.gradient.norm() > 0.01
    assert theory.alignment(problem, problems.contrast(problem)) > 0.5


# Relatives


class WithOrWithout(nn.Module):
    """Two decisions in series, each between a layer and nothing."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            Choice({"layer": nn.Sequential(nn.Linear(3, 3), nn.Tanh()), "zero": Zero()}, name=name)
            for name in ("first", "second")
        )

    def forward(self, x):
        return torch.tanh(x + self.first(x)) + self.second(x)


def with_or_without():
    generator = problems.seeded(2)
    space = SearchSpace(problems.randomise(WithOrWithout(), generator))
    x, y = (problems.uniform(5, 3, low=-1, high=1, generator=generator) for _ in range(2))
    objective = network_objective(space, lambda model: F.mse_loss(model(x), y))
    return Enumeration(random_logits(space.sizes, generator), objective)


def test_with_a_zero_operation_as_the_only_rival_a_drawn_layer_gets_half_the_papers_advantage():
    """The other half comes from the draws of the zero operation, of which the advantage learns nothing."""
    problem = with_or_without()
    found, paper = (f(problem).values for f in (problems.contrast, problems.approximate_advantage))
    drew_layer = problem.architectures[..., 0] == 1
    torch.testing.assert_close(found[drew_layer], 0.5 * paper[drew_layer])
    assert found[~drew_layer].any(-1).all()
    assert not paper[~drew_layer].any()


def at_uniform_theta(problem):
    return Enumeration(torch.where(problem.logits.isfinite(), 0.0, problem.logits), problem.objective)


def test_at_uniform_theta_the_pair_of_proxylessnas_has_the_same_mean_up_to_scale():
    """K / (2 (K - 1)) of it at a decision between K operations."""
    for problem in map(at_uniform_theta, (problems.random_table((4, 2, 3), 0), problems.linear_chain_problem())):
        sizes = problem.logits.isfinite().sum(-1, keepdim=True)
        pair, rival = (f(problem).mean for f in (problems.proxyless, problems.contrast))
        torch.testing.assert_close(pair, sizes / (2 * (sizes - 1)) * rival)


def test_away_from_it_the_weight_of_the_pair_is_not_that_of_the_gradient():
    problem = random_quadratic((4, 3), seed=0)
    assert theory.alignment(problem, problems.contrast(problem)) == pytest.approx(1)
    assert theory.alignment(problem, problems.proxyless(problem)) < 0.999


def test_between_two_operations_they_are_parallel_at_any_theta():
    problem = random_quadratic((2, 2, 2), seed=1)
    assert_parallel(problems.proxyless(problem).mean, problems.contrast(problem).mean)


# Variance


def test_between_equal_operations_it_has_no_variance_at_all():
    """Equal outputs: the swap changes nothing and its estimate is 0; the advantage keeps its own variance."""
    problem = problems.of_one_output(series.squared_distance, (0.5, 0.5))
    assert not problems.contrast(problem).values.any()
    assert problems.approximate_advantage(problem).variance.sum() > 0

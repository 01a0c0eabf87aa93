"""The expected cost in closed form, against enumeration and finite differences."""

import math

import pytest
import torch

from advnas import SearchSpace, costs
from advnas.costs import Cost, Expected, operations_of
from networks import Tied, apart, nested

SPACES = {"nested": nested, "tied": Tied, "apart": apart}


@pytest.fixture(params=SPACES)
def space(request):
    return SearchSpace(SPACES[request.param]())


def two_costs(space):
    products = costs.multiply_adds(space, torch.zeros(1, 4))
    return [costs.parameters(space), products]


def random_logits(space, seed):
    logits = torch.randn(len(space), max(space.sizes), generator=torch.Generator().manual_seed(seed)).double()
    padding = torch.arange(max(space.sizes)) >= torch.tensor(space.sizes)[:, None]
    return 2 * logits.masked_fill(padding, -torch.inf)


def enumerated(space, cost, logits):
    log_p = logits.log_softmax(-1)
    return math.fsum(
        math.exp(float(log_p[space.one_hot(one).bool()].sum())) * cost.of(one) for one in space.architectures()
    )


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_mean_over_all_architectures(space, seed):
    both, logits = two_costs(space), random_logits(space, seed)
    found = Expected(both, operations_of(space)).of(logits.softmax(-1))
    for cost, expected in zip(both, found.tolist(), strict=True):
        assert expected == pytest.approx(enumerated(space, cost, logits), rel=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_its_gradient_is_that_of_finite_differences(space, seed):
    expected, logits = Expected(two_costs(space), operations_of(space)), random_logits(space, seed)
    gradient = expected.gradient(logits.softmax(-1))
    step = 1e-6
    for row, size in enumerate(space.sizes):
        for column in range(size):
            shift = torch.zeros_like(logits)
            shift[row, column] = step
            up, down = (expected.of((logits + sign * shift).softmax(-1)) for sign in (1, -1))
            torch.testing.assert_close(gradient[:, row, column], (up - down) / (2 * step), rtol=1e-5, atol=1e-5)
    assert (gradient[:, logits.isinf()] == 0).all()


def test_leading_dimensions_are_searches_side_by_side(space):
    expected = Expected(two_costs(space), operations_of(space))
    many = torch.stack([random_logits(space, seed) for seed in range(3)]).softmax(-1)
    torch.testing.assert_close(expected.of(many), torch.stack([expected.of(one) for one in many]))
    torch.testing.assert_close(expected.gradient(many), torch.stack([expected.gradient(one) for one in many]))


def test_nested_costs_are_as_exact_as_others():
    inside = frozenset({("outer", "nest"), ("inner", "large")})
    decisions = {"outer": ("nest", "leaf"), "inner": ("small", "large")}
    cost = Cost("energy", "", 0.0, {inside: 2.0**24 + 1})  # no number of 32 bits
    assert Expected([cost], decisions).of(torch.eye(2)).item() == cost.of({"outer": "nest", "inner": "large"})

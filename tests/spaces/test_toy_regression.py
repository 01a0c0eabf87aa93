import math

import pytest
import torch
from torch.nn import functional as F

from advnas import Search, SearchSpace
from advnas.randomness import generator
from advnas.spaces.toy_regression import FILTER, MAP, SIDE, ToyRegression, random_weights
from advnas.testing import check_space


def images(count=4):
    return torch.rand(count, 1, SIDE, SIDE, generator=generator(7)) * 2 - 1


def test_it_holds_the_rules_of_a_space():
    check_space(lambda: ToyRegression(2, 3, generator=generator(0)), images())


def test_the_space_is_the_papers():
    space = SearchSpace(ToyRegression(generator=generator(0)))
    assert space.sizes == (10,) * 10
    assert space.decisions[0].operations == tuple(f"filter_{j}" for j in range(10))


def test_the_output_is_the_mean_of_the_readouts_of_the_chosen_filters():
    filters, readouts = random_weights(3, 4, generator(5))
    network, x = ToyRegression(3, 4, generator=generator(5)), images()
    space = SearchSpace(network)
    chosen = [2, 0, 3]
    hidden = [F.conv2d(x, filters[i, j][None, None], stride=2).tanh() for i, j in enumerate(chosen)]
    expected = sum((h * r).sum((1, 2, 3)) for h, r in zip(hidden, readouts, strict=True)) / 3
    with space.running({f"edges.{i}": f"filter_{j}" for i, j in enumerate(chosen)}):
        output = network(x)
    assert output.shape == (4,)
    assert torch.allclose(output, expected, atol=1e-6)


def test_a_single_input_keeps_its_batch():
    network = ToyRegression(2, 2, generator=generator(0))
    with SearchSpace(network).running({"edges.0": "filter_0", "edges.1": "filter_1"}):
        assert network(images(1)).shape == (1,)


@pytest.mark.parametrize(("which", "fan_in"), [(0, FILTER * FILTER), (1, MAP * MAP)])
def test_weights_are_normal_with_variance_1_over_fan_in(which, fan_in):
    weights = random_weights(40, 40, generator(1))[which]
    deviation = 1 / math.sqrt(fan_in)
    assert weights.std().item() == pytest.approx(deviation, rel=0.1)
    assert weights.mean().abs().item() < 4 * deviation / math.sqrt(weights.numel())


def test_weights_come_from_the_generator_alone_and_are_fixed():
    one, same, other = (ToyRegression(2, 3, generator=generator(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in one.parameters())


def test_it_can_be_searched_like_any_network():
    network = ToyRegression(2, 3, generator=generator(0))
    search = Search(network, steps=4)
    before = [parameter.clone() for parameter in network.parameters()]
    for _ in range(4):
        search.weight_step(lambda model: model(images()).square().mean())
        search.architecture_step(lambda model: model(images()).square().mean())
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert (search.distribution.logits != 1).all()

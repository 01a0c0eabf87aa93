"""Costs that are sums are exact: on random architectures they equal what is counted on the derived module."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from advnas import Choice, SearchSpace, costs, spaces
from networks import Tied, apart, nested, uniform

IMAGES = torch.zeros(1, 3, 8, 8)
SPACES = {
    "nasbench201": (lambda: spaces.get("nasbench201", channels=2), IMAGES),
    "darts": (lambda: spaces.get("darts", channels=2), IMAGES),
    "mobile": (lambda: spaces.get("mobile", channels=2), IMAGES),
    "nested": (nested, torch.zeros(2, 4)),
    "tied": (Tied, torch.zeros(2, 4)),
    "apart": (apart, torch.zeros(2, 4)),
}


@pytest.fixture(params=SPACES, scope="module")
def made(request):
    build, example = SPACES[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SearchSpace(build()), example


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_parameters_and_multiply_adds_are_those_of_the_derived_module(made, seed):
    space, example = made
    weights, products = costs.parameters(space), costs.multiply_adds(space, example)
    modes = [module.training for module in space.model.modules()]
    for architecture in uniform(space, 500 if seed else 100, seed):  # six spaces: 600, or 3000
        module = space.derive(architecture).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(example)
        assert weights.of(architecture) == sum(weight.numel() for weight in module.parameters())
        assert products.of(architecture) == counter.get_total_flops() / 2
    assert [module.training for module in space.model.modules()] == modes


def test_a_network_that_is_called_by_name_costs_what_it_costs_otherwise():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Choice({"skip": torch.nn.Identity(), "linear": torch.nn.Linear(4, 4)}, name="layer")

        def forward(self, x, scale=1.0):
            return scale * self.layer(x)

    space, x = SearchSpace(Named()), torch.zeros(1, 4)
    for cost in (costs.multiply_adds, costs.memory):
        assert cost(space, costs.Arguments((), {"x": x, "scale": 2.0})) == cost(space, (x, 2.0))

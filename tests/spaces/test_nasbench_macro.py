import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from advnas import SearchSpace
from advnas.gates import find_placement
from advnas.spaces.nasbench_macro import OPERATIONS, Bottleneck, LayerChainNetwork, nasbench_macro_candidates
from advnas.tables import nasbench_macro
from advnas.testing import check_space


def small(**options):
    return LayerChainNetwork(inputs=1, width=2, head=4, classes=3, **options)


def image(side=16):
    return torch.randn(2, 1, side, side, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def full_size():
    """The benchmark's network, without memory for its weights."""
    with torch.device("meta"):
        return SearchSpace(LayerChainNetwork())


def costs(space, digits):
    """Parameters, and multiply-adds for an image of 32 x 32, of a derived network."""
    network = space.derive(nasbench_macro.from_string(digits)).eval()
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(1, 3, 32, 32, device="meta"))
    return sum(parameter.numel() for parameter in network.parameters()), counter.get_total_flops() // 2


def test_it_is_a_space():
    check_space(small, image(), architectures=0)


def test_decisions_and_operations_are_those_of_the_table(full_size):
    assert tuple(decision.name for decision in full_size.decisions) == nasbench_macro.LAYERS
    assert {decision.operations for decision in full_size.decisions} == {OPERATIONS} == {nasbench_macro.OPERATIONS}


def test_every_stage_halves_the_resolution_and_doubles_the_channels():
    space, shapes = SearchSpace(small()), []
    for layer in space.model.layers:
        layer.register_forward_hook(lambda *call: shapes.append(tuple(call[-1].shape[1:])))
    with space.running(nasbench_macro.from_string("01201201")):
        assert space.model(image()).shape == (2, 3)
    assert shapes == [(4, 8, 8)] * 2 + [(8, 4, 4)] * 3 + [(16, 2, 2)] * 3


def test_an_identity_is_one_only_where_the_shape_stays():
    assert isinstance(nasbench_macro_candidates(4, 4, 1)["identity"], nn.Identity)
    convolution, norm = nasbench_macro_candidates(4, 8, 2)["identity"]
    assert (convolution.kernel_size, convolution.stride, norm.affine) == ((1, 1), (2, 2), True)


def test_the_residual_belongs_to_the_candidate_where_the_shape_stays():
    block = Bottleneck(4, 4, 1, kernel=3, expansion=3)
    x = torch.randn(2, 4, 6, 6)
    nn.init.zeros_(block.body[-1].weight)
    assert torch.equal(block(x), x)
    changing = Bottleneck(4, 8, 2, kernel=5, expansion=6)
    nn.init.zeros_(changing.body[-1].weight)
    assert torch.equal(changing(x), torch.zeros(2, 8, 3, 3))


def test_a_gate_may_be_the_last_scale_only_where_nothing_is_added_behind_it():
    assert find_placement(Bottleneck(4, 4, 1, kernel=3, expansion=3)).norm is None
    changing = Bottleneck(4, 8, 2, kernel=3, expansion=3)
    assert find_placement(changing).norm is changing.body[-1]


# Costs, against the benchmark's table


@pytest.mark.parametrize(
    ("digits", "parameters", "multiply_adds"),
    [
        ("00000000", 387_882, 7_713_280),
        ("00000001", 791_594, 14_115_328),
        ("00000200", 672_298, 16_933_376),
        ("00001000", 491_434, 14_225_920),
        ("22212220", 1_985_514, 85_164_544),
    ],
)
def test_the_costs_of_known_rows(full_size, digits, parameters, multiply_adds):
    assert costs(full_size, digits) == (parameters, multiply_adds)


def test_the_costs_of_200_networks_are_those_of_the_table(full_size):
    """The table counts affine norms and biases as parameters, and only products as multiply-adds."""
    folder = os.environ.get("ADVNAS_DATA") or Path(__file__).parents[3] / "shared" / "data"
    try:
        table = nasbench_macro.load(nasbench_macro.find(Path(folder)))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    drawn = np.random.default_rng(0).choice(table.networks, 198, replace=False)
    for digits in ["00000000", "22222222", *map(str, drawn)]:
        known = table.entry(digits)
        assert costs(full_size, digits) == (round(known.params * 1e6), round(known.flops * 1e6))

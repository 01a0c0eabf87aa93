import torch

from advnas.architecture import Architecture
from advnas.space import SearchSpace
from advnas.spaces.small_cells import SmallCellNetwork
from advnas.testing import check_space

NAMES = ["0->1", "0->2", "1->2", "0->3", "1->3", "2->3"]


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def architecture(*operations):
    return Architecture(dict(zip(NAMES, operations, strict=True)))


def test_the_small_network_leans_on_its_cells():
    space = SearchSpace(SmallCellNetwork(channels=8, zero=True, affine=True))
    check_space(lambda: SmallCellNetwork(channels=4, zero=True), randn(2, 1, 8, 8), architectures=8)
    assert [decision.name for decision in space.decisions] == NAMES
    fixed = 8 + 2 * 8 + 2 * 8 + 8 * 10 + 10  # stem and its norm, last norm, classifier
    counts = {"skip_connect": 0, "nor_conv_3x3": 3 * 6 * (9 * 8 * 8 + 2 * 8)}
    for operation, count in counts.items():
        network = space.derive(architecture(*[operation] * 6))
        assert sum(parameter.numel() for parameter in network.parameters()) == fixed + count
        assert network(randn(5, 1, 8, 8)).shape == (5, 10)

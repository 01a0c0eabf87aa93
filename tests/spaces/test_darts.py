import pytest
import torch
from torch import nn

from advnas import Architecture, Search, SearchSpace
from advnas.spaces.darts import (
    DARTS_V1,
    DARTS_V2,
    EDGES,
    KINDS,
    DartsNetwork,
    FactorizedReduce,
    darts_candidates,
    decision,
    from_genotype,
    top_two,
)
from advnas.testing import check_space


def small(**options):
    return DartsNetwork(channels=2, cells=3, classes=3, inputs=1, **options)


def image(side=8):
    return torch.randn(2, 1, side, side, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def published():
    """The network of the paper's results, as shapes without numbers."""
    with torch.device("meta"):
        return SearchSpace(DartsNetwork(channels=36, cells=20, affine=True))


@pytest.mark.parametrize(("architecture", "count"), [(DARTS_V1, 3_169_414), (DARTS_V2, 3_349_342)])
def test_the_published_networks_have_their_known_size(published, architecture, count):
    """The paper says 3.3 M for the second-order cell, without the auxiliary head."""
    network = published.derive(architecture)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_the_space_has_two_kinds_of_cells_of_14_edges(published):
    assert len(published) == 28
    assert set(published.sizes) == {8}
    assert published.zeros.sum() == 28
    copies = {d.name.split()[0]: len(d.choices) for d in published.decisions}
    assert copies == {"normal": 18, "reduction": 2}
    assert len(EDGES) == 14


def test_seven_operations_without_the_zero_operation():
    assert set(SearchSpace(small(zero=False)).sizes) == {7}


def test_it_is_a_space():
    def two(channels, stride):
        operations = darts_candidates(channels, stride)
        return {name: operations[name] for name in ("none", "dil_conv_3x3")}

    check_space(lambda: small(candidates=two), image(), architectures=0)


@pytest.mark.slow
def test_it_is_a_space_with_all_operations():
    check_space(small, image(), architectures=0)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("affine", [True, False])
def test_all_operations_return_the_same_shape(stride, affine):
    shapes = {
        tuple(operation(torch.randn(2, 6, 8, 8)).shape)
        for operation in darts_candidates(6, stride, affine=affine).values()
    }
    assert shapes == {(2, 6, 8 // stride, 8 // stride)}


def test_a_reduction_sees_every_second_pixel_twice():
    reduce = FactorizedReduce(1, 2, affine=True)
    x = image(4).requires_grad_()
    for conv, offset in ((reduce.even, 0), (reduce.odd, 1)):
        nn.init.ones_(conv.weight)
        (slope,) = torch.autograd.grad(conv(x[:, :, offset:, offset:]).sum(), x)
        assert slope[0, 0, offset::2, offset::2].min() == 1
        assert slope.sum() == 2 * 4


def test_two_edges_a_node_are_kept_by_their_strongest_operation():
    rows = {decision(kind, *edge): {"none": 0.9, "a": 0.06, "b": 0.04} for kind in KINDS for edge in EDGES}
    rows["normal 2->5"] = {"none": 0.5, "a": 0.1, "b": 0.4}
    rows["normal 4->5"] = {"none": 0.8, "a": 0.2, "b": 0.0}
    rows["normal 0->5"] = {"none": 0.0, "a": 0.15, "b": 0.14}
    chosen = top_two(rows)
    into = {source: chosen[f"normal {source}->5"] for source in range(5)}
    assert into == {0: "none", 1: "none", 2: "b", 3: "none", 4: "a"}
    kept = [name for name, operation in chosen.items() if operation != "none"]
    assert len(kept) == 2 * 4 * 2
    assert (chosen["reduction 0->2"], chosen["reduction 1->2"]) == ("a", "a")


def test_what_top_two_finds_can_be_derived_and_run():
    search = Search(small(), "advantage")
    network = search.derive(top_two(search.probabilities()))
    assert network(image()).shape == (2, 3)


def test_published_cells_keep_two_edges_a_node():
    for architecture in (DARTS_V1, DARTS_V2):
        for kind in KINDS:
            for target in range(2, 6):
                into = [architecture[decision(kind, source, target)] for source in range(target)]
                assert len(into) - into.count("none") == 2


def test_a_printed_genotype_becomes_an_architecture():
    pairs = [("skip_connect", 0), ("sep_conv_3x3", 1)] * 4
    architecture = from_genotype(pairs, pairs)
    assert isinstance(architecture, Architecture)
    assert architecture["normal 1->4"] == "sep_conv_3x3"
    assert architecture["reduction 0->5"] == "skip_connect"
    assert architecture["normal 2->3"] == "none"

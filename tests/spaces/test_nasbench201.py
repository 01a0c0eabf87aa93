import gc
import itertools
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from advnas import Architecture, Choice, Draw, Search, SearchSpace, Zero
from advnas.search.plan import saved_bytes
from advnas.spaces.nasbench201 import (
    EDGES,
    Cell,
    ConvolutionCellNetwork,
    Reduction,
    ReLUConv,
    ReLUConvBN,
    SharedReLU,
)
from advnas.testing import check_space

NAMES = [f"{source}->{target}" for source, target in EDGES]
FORMATS = [torch.contiguous_format, torch.channels_last]
FORMAT_IDS = ["contiguous", "channels_last"]


def architecture(*operations):
    return Architecture(dict(zip(NAMES, operations, strict=True)))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# The network


@pytest.fixture(scope="module")
def space():
    return SearchSpace(ConvolutionCellNetwork(affine=True, zero=True))


@pytest.mark.parametrize(
    ("operations", "count"),
    [
        (["skip_connect"] * 6, 73_306),
        (["none"] * 6, 73_306),
        (["avg_pool_3x3"] * 6, 73_306),
        (["nor_conv_3x3"] * 6, 1_531_546),
        (["nor_conv_1x1"] * 6, 73_306 + 6 * 28_000),
        (["nor_conv_3x3", "nor_conv_3x3", "nor_conv_1x1", "skip_connect", "none", "avg_pool_3x3"], 587_386),
        (["skip_connect", "nor_conv_1x1", "nor_conv_1x1", "nor_conv_3x3", "none", "none"], 372_346),
    ],
)
def test_the_derived_network_has_the_parameters_of_the_benchmark(space, operations, count):
    """0.073306 M, and 0.24304 M for every 3x3 and 0.028 M for every 1x1 edge of the cell."""
    edges = 243_040 * operations.count("nor_conv_3x3") + 28_000 * operations.count("nor_conv_1x1")
    assert count == 73_306 + edges
    network = space.derive(architecture(*operations))
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_the_space_is_the_benchmarks(space):
    assert [decision.name for decision in space.decisions] == ["0->1", "0->2", "1->2", "0->3", "1->3", "2->3"]
    operations = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
    assert {decision.operations for decision in space.decisions} == {operations}
    assert {len(decision.choices) for decision in space.decisions} == {15}
    assert space.size == 15_625
    assert space.zeros.sum() == 6


@pytest.mark.parametrize("zero", [True, False])
def test_it_holds_the_rules_of_a_space(zero):
    check_space(
        lambda: ConvolutionCellNetwork(channels=2, cells=1, classes=3, zero=zero),
        randn(2, 3, 8, 8),
        architectures=8,
    )


def test_a_search_uses_the_statistics_of_the_batch_and_no_affine_norm_in_its_cells():
    norms = [m for m in ConvolutionCellNetwork(cells=1).body.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(norm.affine or norm.track_running_stats for norm in norms)


def test_the_sizes_are_halved_and_the_channels_doubled_twice():
    network = ConvolutionCellNetwork(channels=4, cells=1, classes=7)
    shapes = []
    for module in network.modules():
        if isinstance(module, Cell):
            module.register_forward_hook(lambda _, __, output: shapes.append(tuple(output.shape)))
    with SearchSpace(network).running(architecture(*["skip_connect"] * 6)):
        assert network(randn(2, 3, 16, 16)).shape == (2, 7)
    assert shapes == [(2, 4, 16, 16), (2, 8, 8, 8), (2, 16, 4, 4)]


def test_a_cell_adds_up_what_comes_into_a_node():
    cell, x = Cell(2, lambda channels: {"skip": nn.Identity(), "zero": Zero()}), randn(1, 2, 3, 3)
    space = SearchSpace(cell)
    with space.running(architecture(*["skip"] * 6)):
        assert torch.allclose(cell(x), 4 * x)
    with space.running(architecture("skip", "zero", "skip", "zero", "skip", "skip")):
        assert torch.allclose(cell(x), 2 * x)
    with space.running(architecture("skip", "skip", "skip", "zero", "zero", "zero")):
        assert not cell(x).any()


def test_the_average_pool_does_not_count_padding():
    cell = ConvolutionCellNetwork(channels=2, cells=1).body[0]
    with SearchSpace(cell).running(architecture(*["avg_pool_3x3"] * 6)):
        assert torch.allclose(cell(torch.ones(1, 2, 4, 4)), torch.full((1, 2, 4, 4), 4.0))


def test_own_candidates_get_the_width_of_their_stage():
    widths = []
    ConvolutionCellNetwork(
        channels=4, cells=1, candidates=lambda width: widths.append(width) or {"skip": nn.Identity()}
    )
    assert widths == [4] * 6 + [8] * 6 + [16] * 6


# Gates that move along nodes

OPERATIONS = {
    "skip": nn.Identity,
    "pool": lambda: nn.AvgPool2d(3, stride=1, padding=1),
    "conv": lambda: ReLUConvBN(2, 1, affine=False),
    "zero": Zero,
}


def make_cell(*, edges=True):
    torch.manual_seed(0)
    cell = Cell(2, lambda channels: {name: make() for name, make in OPERATIONS.items()}).double()
    for choice in cell.edges:
        choice.edge = choice.edge if edges else None
    return cell


def definition(cell, x, weights):
    """x_l = sum over k < l and j of w_kl,j O_kl,j(x_k)."""
    nodes = {0: x, 1: 0, 2: 0, 3: 0}
    for (source, target), choice, row in zip(EDGES, cell.edges, weights, strict=True):
        for candidate, weight in zip(choice.candidates, row, strict=True):
            nodes[target] = nodes[target] + weight * candidate(nodes[source])
    return nodes[3]


def slopes_of(output, weights):
    return torch.autograd.grad(output, weights, randn(*output.shape, seed=1).double())[0]


@pytest.mark.parametrize("late", list(itertools.product(OPERATIONS, repeat=3)), ids="-".join)
def test_the_slopes_of_a_cell_are_those_of_its_definition_wherever_the_gates_stand(late):
    """With all operations at the edges that leave nodes 1 and 2, some of which do without a gate of their own."""
    cell, x = make_cell(), randn(3, 2, 4, 4).double()
    space = SearchSpace(cell)
    for early in itertools.product(OPERATIONS, ["skip", "conv"]):
        chosen = architecture(early[0], early[1], late[0], "conv", late[1], late[2])
        draw = Draw.gated(space.one_hot(chosen).double())
        with space.running(draw):
            output = cell(x)
        weights = draw.weights.detach().requires_grad_()
        expected = definition(cell, x, weights)
        assert torch.allclose(output, expected)
        wanted = slopes_of(expected, weights) * draw.active
        assert torch.allclose(slopes_of(output, draw.weights), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("operation", "edges", "gates"), [("skip", True, 4), ("skip", False, 6), ("pool", True, 4), ("conv", True, 0)]
)
def test_a_node_that_only_skips_and_poolings_read_needs_one_gate_less(operation, edges, gates, monkeypatch):
    monkeypatch.setattr("advnas.gates.gate._SMALL", 0)  # the gates of images that are larger than these
    cell = make_cell(edges=edges)
    space = SearchSpace(cell)
    with space.running(Draw.gated(space.one_hot(architecture(*[operation] * 6)).double())):
        output = cell(randn(3, 2, 4, 4).double())
    assert backward_nodes(output).count("_UnitGateBackward") == gates


def backward_nodes(output):
    """The names of all operations that the backward pass goes through."""
    names, waiting = {}, [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in names:
            names[node] = node.name()
            waiting.extend(following for following, _ in node.next_functions)
    return list(names.values())


@pytest.mark.parametrize(
    "draw_of",
    [
        pytest.param(lambda chosen: Draw(chosen, chosen != 0, constants=True), id="drawn with constants"),
        pytest.param(lambda chosen: Draw(chosen, torch.ones_like(chosen, dtype=torch.bool)), id="all active"),
        pytest.param(lambda chosen: Draw((chosen + 0.1).detach(), chosen != 0), id="other weights"),
    ],
)
@pytest.mark.parametrize("operation", ["skip", "pool"])
def test_the_slopes_of_other_draws_do_not_depend_on_the_edges(draw_of, operation):
    outcomes = []
    for edges in (True, False):
        cell = make_cell(edges=edges)
        space = SearchSpace(cell)
        draw = draw_of(space.one_hot(architecture(*[operation] * 6)).double())
        draw.weights.requires_grad_()
        with space.running(draw):
            output = cell(randn(3, 2, 4, 4).double())
        outcomes.append(slopes_of(output, draw.weights))
    assert outcomes[0].any()
    assert torch.allclose(*outcomes, rtol=1e-9, atol=1e-9)


# Frozen weights


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("layout", FORMATS, ids=FORMAT_IDS)
def test_frozen_weights_change_neither_the_output_nor_any_slope(kernel, affine, layout):
    module = ReLUConvBN(4, kernel, affine=affine)
    outcomes = []
    for trainable in (False, True):
        module.conv.weight.requires_grad_(trainable)
        x = randn(3, 4, 6, 6)
        x[0, 0] = 0  # where the slope of the ReLU is a matter of taste
        x = x.to(memory_format=layout).requires_grad_()
        draw = Draw.gated(torch.ones(1, 1))
        choice = Choice({"only": module})
        with SearchSpace(choice).running(draw):
            output = choice(x)
        outcomes.append([output, *torch.autograd.grad(output, [draw.weights, x], randn(*output.shape, seed=1))])
    for frozen, plain in zip(*outcomes, strict=True):
        assert torch.allclose(frozen, plain, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(outcomes[0][0], module.norm(module.conv(F.relu(x))), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", FORMATS, ids=FORMAT_IDS)
def test_a_frozen_reduction_changes_neither_the_output_nor_the_slope_of_its_input(layout):
    module, outcomes = Reduction(4, affine=True).double(), []
    for trainable in (False, True):
        module.requires_grad_(trainable)
        x = randn(3, 4, 6, 8).double().to(memory_format=layout).requires_grad_()
        output = module(x)
        outcomes.append([output, *torch.autograd.grad(output, x, randn(*output.shape, seed=1).double())])
    for frozen, plain in zip(*outcomes, strict=True):
        assert torch.allclose(frozen, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", FORMATS, ids=FORMAT_IDS)
def test_frozen_weights_change_nothing_in_less_precision_either(dtype, layout):
    conv, outcomes = ReLUConv(4, 4, 3), []
    for trainable in (False, True):
        conv.weight.requires_grad_(trainable)
        x = randn(3, 4, 6, 6).to(memory_format=layout).requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            output = conv(x)
        assert output.dtype == dtype
        outcomes.append([output, *torch.autograd.grad(output, x, randn(*output.shape, seed=1).to(dtype))])
    for frozen, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(frozen, plain, rtol=0.02, atol=0.02)


def test_a_frozen_reduction_keeps_its_input_once():
    """The pooling of its shortcut and its first convolution share it; no ReLU of that size is kept."""
    module, x = Reduction(4, affine=False), randn(3, 4, 32, 32).requires_grad_() * 1
    trained = saved_bytes(lambda: module(x))
    module.requires_grad_(False)
    assert trained - saved_bytes(lambda: module(x)) > 0.9 * x.nbytes  # the frozen weights are counted


@pytest.mark.parametrize("layout", FORMATS, ids=FORMAT_IDS)
@pytest.mark.parametrize(
    "operations",
    [
        ["nor_conv_3x3"] * 6,
        ["nor_conv_1x1", "nor_conv_3x3", "skip_connect", "avg_pool_3x3", "nor_conv_3x3", "nor_conv_1x1"],
    ],
)
def test_an_architecture_step_sees_the_slopes_of_the_plain_network(layout, operations):
    network = ConvolutionCellNetwork(channels=4, cells=1).to(memory_format=layout).double()
    space = SearchSpace(network)
    x, y = randn(4, 3, 8, 8).double().to(memory_format=layout), torch.tensor([0, 1, 2, 3])
    slopes = []
    for trainable in (False, True):
        network.requires_grad_(trainable)
        draw = Draw.gated(space.one_hot(architecture(*operations)).double())
        with space.running(draw):
            loss = F.cross_entropy(network(x), y)
        slopes.append(torch.autograd.grad(loss, draw.weights)[0])
    assert slopes[0].any(-1).all()
    assert torch.allclose(*slopes, rtol=1e-9, atol=1e-12)


def test_edges_of_one_node_share_a_relu_and_notice_when_the_node_changes_in_place():
    relu, x = SharedReLU(), randn(2, 2, 4, 4).requires_grad_() * 1
    assert relu(x) is relu(x)
    x.mul_(-1)
    assert torch.equal(relu(x), F.relu(x))
    assert not relu(x).requires_grad


def test_a_cell_keeps_no_node_after_its_forward_pass():
    cell = Cell(2, lambda channels: {"conv": ReLUConvBN(channels, 3, affine=False)}).requires_grad_(False)
    x = randn(2, 2, 4, 4).requires_grad_()
    with SearchSpace(cell).running(Draw.gated(torch.ones(6, 1))), torch.no_grad():
        cell(x)
    node = weakref.ref(x)
    del x
    gc.collect()
    assert node() is None


def test_a_second_derivative_of_frozen_weights_is_refused_clearly():
    module, x = ReLUConvBN(2, 3, affine=True).requires_grad_(False), randn(2, 2, 4, 4).requires_grad_()
    with pytest.raises(RuntimeError, match=r"frozen convolution .*only once.*create_graph=True"):
        torch.autograd.grad(module(x).sum(), x, create_graph=True)


def test_an_architecture_step_keeps_less_than_a_weight_step():
    sizes = {}
    network = ConvolutionCellNetwork(
        channels=4, cells=1, candidates=lambda w: {"c": ReLUConvBN(w, 3, affine=False)}
    )
    search, x, y = Search(network, steps=10), randn(8, 3, 16, 16), torch.zeros(8, dtype=torch.long)

    def measured(kind):
        def loss_of(model):
            kept = {}

            def keep(tensor):
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = F.cross_entropy(model(x), y)
            sizes[kind] = sum(kept.values())
            return loss

        return loss_of

    search.weight_step(measured("weights"))
    search.architecture_step(measured("architecture"))
    assert sizes["architecture"] < 0.8 * sizes["weights"]


# Costs, against the benchmark's table


@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_parameters_and_multiply_adds_are_those_of_the_table_for_random_cells_and_the_extremes(count):
    with torch.device("meta"):
        space = SearchSpace(ConvolutionCellNetwork(zero=True, affine=True))
        images = torch.empty(1, 3, 32, 32)
    random = torch.Generator().manual_seed(0)
    operations = space.decisions[0].operations
    extremes = [[operation] * 6 for operation in operations]
    drawn = [[operations[k] for k in torch.randint(5, (6,), generator=random).tolist()] for _ in range(count)]
    for cell in extremes + drawn:
        network = space.derive(architecture(*cell)).eval()
        with FlopCounterMode(display=False) as counter:
            network(images)
        large, small = cell.count("nor_conv_3x3"), cell.count("nor_conv_1x1")
        parameters = sum(parameter.numel() for parameter in network.parameters())
        assert round(parameters / 1e6, 6) == round(0.073306 + 0.24304 * large + 0.028 * small, 6)
        # The table counts the classifier's biases too.
        multiply_adds = counter.get_total_flops() // 2 + network.classifier.out_features
        assert round(multiply_adds / 1e6, 5) == round(7.78305 + 35.38944 * large + 3.93216 * small, 5)

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from advnas import Choice, Draw, SearchSpace, Zero
from advnas.gates.shapes import note_call

Pair = namedtuple("Pair", ["sum", "difference"])


class Scale(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)))

    def forward(self, x):
        return x * self.factor


class Arithmetic(nn.Module):
    """Takes two tensors and a keyword, and returns them in any container."""

    def __init__(self, sign, container):
        super().__init__()
        self.sign, self.container = sign, container

    def forward(self, x, y, *, offset):
        plus, minus = x + self.sign * y + offset, x - self.sign * y
        if issubclass(self.container, dict):
            return self.container({"sum": plus, "nested": [minus, (plus,)]})
        return Pair(plus, minus) if self.container is Pair else self.container([plus, minus])


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]


def run(choice, weights, *args, gated=True, active=None, **kwargs):
    """The choice's output under the given weights of its candidates, and the draw."""
    weights = torch.tensor([weights])
    draw = Draw(weights.requires_grad_(gated), weights != 0 if active is None else torch.tensor([active]))
    with SearchSpace(choice).running(draw):
        return choice(*args, **kwargs), draw


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# Any inputs, any outputs


@pytest.mark.parametrize("container", [tuple, list, dict, OrderedDict, Pair])
@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.0, 1.0], [0.25, 0.75]])
@pytest.mark.parametrize("gated", [True, False])
def test_candidates_take_any_arguments_and_return_tensors_in_any_container(container, weights, gated):
    plus, minus = Arithmetic(1, container), Arithmetic(-1, container)
    x, y, offset = randn(3), randn(3) + 1, torch.tensor(2.0)
    output, _ = run(Choice({"plus": plus, "minus": minus}), weights, x, y, gated=gated, offset=offset)
    assert type(output) is container
    expected = [
        weights[0] * one + weights[1] * other
        for one, other in zip(leaves(plus(x, y, offset=offset)), leaves(minus(x, y, offset=offset)), strict=True)
    ]
    for ours, theirs in zip(leaves(output), expected, strict=True):
        assert torch.allclose(ours, theirs)


def test_a_gate_weighs_all_tensors_of_an_output():
    x, y = randn(3), randn(3) + 1
    output, draw = run(Choice({"plus": Arithmetic(1, dict)}), [1.0], x, y, offset=torch.tensor(2.0))
    total = torch.stack(leaves(output)).sum()
    (slope,) = torch.autograd.grad(total, draw.weights)
    assert slope.item() == pytest.approx(total.item())


def test_an_output_may_hold_whole_numbers_and_other_values():
    class WithLength(nn.Module):
        def forward(self, x):
            return x, torch.tensor(len(x)), "name"

    (x, length, name), draw = run(Choice({"only": WithLength()}), [1.0], randn(3))
    assert (length.item(), length.dtype, name) == (3, torch.int64, "name")
    assert torch.autograd.grad(x.sum(), draw.weights)[0].item() == pytest.approx(randn(3).sum().item())


def test_an_argument_that_is_no_tensor_may_decide_the_shape():
    class Repeat(nn.Module):
        def forward(self, x, *, times):
            return x.repeat(times)

    choice = Choice({"repeat": Repeat()})
    with SearchSpace(choice).running({"choice": "repeat"}):
        assert [len(choice(torch.ones(2), times=times)) for times in (1, 2)] == [2, 4]


# The forward rule


@pytest.mark.parametrize("gated", [True, False])
def test_the_output_is_the_weighted_sum_of_the_active_candidates(gated):
    choice = Choice({"a": Scale(1), "b": Scale(10), "c": Scale(100)})
    output, _ = run(choice, [0.5, 0.0, 0.25], torch.tensor(2.0), gated=gated)
    assert output.item() == pytest.approx(2 * (0.5 + 25))


def test_a_candidate_behind_a_gate_of_0_is_run_without_a_graph_to_learn_its_slope():
    choice = Choice({"a": Scale(3), "b": Scale(10)})
    output, draw = run(choice, [1.0, 0.0], torch.tensor(2.0), active=[True, True])
    assert output.item() == 6
    slope, of_a, of_b = torch.autograd.grad(output, [draw.weights, *choice.parameters()], allow_unused=True)
    assert slope.tolist() == [[6.0, 20.0]]
    assert of_a.item() == 2
    assert of_b is None


def test_a_silenced_candidate_gives_zeros_of_its_own_shape():
    output, _ = run(Choice({"a": nn.Linear(3, 2)}), [0.0], randn(4, 3), active=[True], gated=False)
    assert torch.equal(output, torch.zeros(4, 2))


def test_the_weights_of_inactive_candidates_can_be_added_as_numbers():
    weights = torch.tensor([[1.0, 0.0]], requires_grad=True)
    choice, x = Choice({"a": Scale(3), "b": Scale(10)}), torch.tensor([1.0, 2.0])
    with SearchSpace(choice).running(Draw(weights, torch.tensor([[True, False]]), constants=True)):
        output = choice(x)
    assert output.tolist() == [3.0, 6.0]
    (slope,) = torch.autograd.grad(output, weights, torch.tensor([5.0, 7.0]))
    assert slope.tolist() == [[5 * 3.0 + 7 * 6.0, 5.0 + 7.0]]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("weights", "active"),
    [([0.5, 0.5], [True, True]), ([0.0, 1.0], [True, True]), ([1.0, 0.0], [True, False])],
    ids=["in a mixture", "behind a weight of 0", "alone"],
)
def test_a_candidate_that_changes_its_input_is_refused_in_every_step(weights, active, gated):
    """Alone too: a gate in front of it would hide what it does, and theta would learn of another network."""
    choice = Choice({"relu": nn.ReLU(inplace=True), "skip": nn.Identity()})

    def forward_and_back():
        output, _ = run(choice, weights, torch.tensor([-1.0, 1.0]), active=active, gated=gated)
        output.sum().backward()

    with pytest.raises(ValueError, match=r"'relu'.*in place"):
        forward_and_back()


def test_a_candidate_may_work_in_place_on_what_it_has_made():
    choice, x = Choice({"relu": nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))}), torch.tensor([-1.0, 1.0])
    output, draw = run(choice, [1.0], x)
    assert x.tolist() == [-1.0, 1.0]
    assert torch.autograd.grad(output.sum(), draw.weights)[0].item() == pytest.approx(output.sum().item())


# The zero operation


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [(6,), (7,), (6, 7), (5, 4, 3)])
def test_zero_has_the_shape_of_a_convolution_with_its_stride(stride, size):
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(size)]
    x = randn(2, 4, *size)
    output = Zero(stride)(x)
    assert output.shape == kind(4, 4, 3, stride=stride, padding=1)(x).shape
    assert not output.any()


def test_zero_ignores_further_arguments_and_keeps_the_type():
    output = Zero()(randn(2, 3).double(), randn(1), mask=None)
    assert output.shape == (2, 3)
    assert output.dtype is torch.float64


# Mistakes


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        ({}, ValueError, "at least one candidate"),
        ([nn.Identity()], TypeError, r"names its candidates, got list.*Write Choice\(\{"),
        ({"skip": nn.Identity}, TypeError, r"'skip' is .*Identity.*an instance, not the class"),
        ({"relu": torch.relu}, TypeError, r"'relu' is .*not an nn\.Module.*Wrap it"),
    ],
    ids=["none", "list", "class", "function"],
)
def test_wrong_candidates_are_refused_with_the_line_to_write(candidates, error, message):
    with pytest.raises(error, match=message):
        Choice(candidates)


@pytest.mark.parametrize("edge", ["01", ("0",), ("0", "0"), ["0", "1"]])
def test_an_edge_names_two_nodes(edge):
    with pytest.raises(ValueError, match=r"edge must name two nodes.*got .*Write for example edge=\('0', '1'\)"):
        Choice({"skip": nn.Identity()}, edge=edge)


def test_a_choice_without_an_architecture_says_how_to_give_it_one():
    with pytest.raises(RuntimeError, match=r"no architecture to run.*space\.running\(architecture\).*derive"):
        Choice({"skip": nn.Identity()}, name="edge")(randn(2))


def test_a_choice_shows_its_name_and_operations():
    assert repr(Choice({"skip": nn.Identity()}, name="edge")).startswith(
        "Choice(\n  name='edge', operations=['skip']"
    )


def test_candidates_of_different_shapes_are_named_with_their_shapes():
    choice = Choice({"wide": nn.Linear(3, 4), "narrow": nn.Linear(3, 2)}, name="edge")
    space = SearchSpace(choice)
    with space.running({"edge": "wide"}):
        choice(randn(5, 3))
    message = r"choice 'edge' 'wide' returned \(5, 4\), 'narrow' returned \(5, 2\) for the same input \(\(5, 3\),\)"
    with space.running({"edge": "narrow"}), pytest.raises(ValueError, match=message):
        choice(randn(5, 3))


def test_inputs_of_other_shapes_are_not_compared():
    choice = Choice({"a": nn.Identity(), "b": nn.Identity()}, name="edge")
    space = SearchSpace(choice)
    for length in range(1, 40):
        with space.running({"edge": "ab"[length % 2]}):
            assert choice(randn(length)).shape == (length,)


def test_compare_shapes_reports_all_candidates_and_is_silent_when_they_agree():
    broken = Choice({"a": nn.Linear(3, 4), "b": nn.Linear(3, 2), "c": nn.Linear(7, 2)})
    call = note_call((randn(5, 3),), {})
    report = broken.compare_shapes(call)
    for part in (
        "'a' returned (5, 4)",
        "'b' returned (5, 2)",
        "'c' returned an error (",
        "the choice between a, b, c",
    ):
        assert part in report
    assert Choice({"a": nn.Linear(3, 4), "b": nn.Linear(3, 4)}).compare_shapes(call) is None


def test_the_active_candidates_are_those_of_the_current_draw():
    choice = Choice({"a": nn.Identity(), "b": nn.Tanh()}, name="edge")
    assert choice.active == ()
    with SearchSpace(choice).running({"edge": "b"}):
        assert choice.active == (choice.candidates[1],)

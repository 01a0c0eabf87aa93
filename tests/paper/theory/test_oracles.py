"""Identities of Euler that give the approximate advantage in a second way, and what they imply."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Draw, Search, SearchSpace
from advnas.gates import find_placement
from advnas.paper import problems
from advnas.testing.enumeration import feedback, network_objective

FORMATS = [torch.contiguous_format, torch.channels_last]
TAILS = {"nothing": [], "relu": [nn.ReLU()], "pooling": [nn.AvgPool2d(2)]}


class Opaque(nn.Module):
    """Hides what a candidate ends in, so that its gate is a multiplication."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def loss_of(model, x):
    """Smooth, and different for every output."""
    output = model(x)
    return (
        (output + torch.linspace(-1, 1, output.numel(), dtype=x.dtype).reshape(output.shape)).tanh().square().mean()
    )


def images(memory_format=torch.contiguous_format):
    x = problems.uniform(4, 3, 6, 6, low=-1, high=1, generator=problems.seeded(1))
    return x.to(memory_format=memory_format)


def advantages(model, x):
    """A_i = dr/dw_i of a model whose choices have one candidate each, by its gates."""
    space = SearchSpace(model)
    draw = Draw.gated(torch.ones(len(space), 1, dtype=torch.float64))
    return -feedback(network_objective(space, partial(loss_of, x=x)), draw).slopes.squeeze(-1)


def reward_slopes(model, x, parameters):
    """dr/dparameters of the plain network."""
    space = SearchSpace(model)
    with space.running(Draw.bare(torch.ones(len(space), 1))):
        return torch.autograd.grad(-loss_of(model, x), parameters)


def norm_candidate(tail, affine=True):
    body = nn.Sequential(
        nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3, affine=affine), *tail
    )
    return problems.randomise(body, problems.seeded(2))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("tail", TAILS)
def test_a_candidate_with_a_last_batch_norm_has_the_advantage_of_gamma_and_beta(tail, memory_format):
    """A = <gamma, dr/dgamma> + <beta, dr/dbeta>."""
    candidate = norm_candidate(TAILS[tail]).to(memory_format=memory_format)
    model, x = nn.Sequential(Choice({"only": candidate})), images(memory_format)
    norm = candidate[2]
    assert find_placement(candidate).norm is norm
    gamma, beta = reward_slopes(model, x, [norm.weight, norm.bias])
    torch.testing.assert_close(
        advantages(model, x), ((norm.weight * gamma + norm.bias * beta).sum()[None]).detach()
    )


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tail", TAILS)
def test_a_gate_in_the_batch_norm_and_a_multiplication_agree(tail, affine, memory_format):
    """Two in a row: the first one's advantage needs the gradient that the second one's BatchNorm hands down."""
    x = images(memory_format)
    candidates = [norm_candidate(TAILS[tail], affine).to(memory_format=memory_format) for _ in range(2)]
    inside = nn.Sequential(*(Choice({"only": candidate}) for candidate in candidates))
    outside = nn.Sequential(*(Choice({"only": Opaque(candidate)}) for candidate in candidates))
    assert find_placement(Opaque(candidates[0])).norm is None
    torch.testing.assert_close(advantages(inside, x), advantages(outside, x))


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3, bias=False), nn.Linear(6, 5, bias=False)])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_a_linear_candidate_has_the_advantage_of_its_weight(layer, memory_format):
    """A = <W, dr/dW>, without bias."""
    layer = problems.randomise(copy.deepcopy(layer), problems.seeded(3)).to(memory_format=memory_format)
    model, x = nn.Sequential(Choice({"only": layer})), images(memory_format)
    (slope,) = reward_slopes(model, x, [layer.weight])
    torch.testing.assert_close(advantages(model, x), (layer.weight * slope).sum()[None].detach())


def test_tied_decisions_have_the_sum_of_their_advantages():
    layers = [problems.randomise(nn.Linear(6, 6, bias=False), problems.seeded(seed)) for seed in (4, 5)]
    tied, apart = (
        nn.Sequential(Choice({"only": layers[0]}, name="a"), nn.Tanh(), Choice({"only": layers[1]}, name=second))
        for second in ("a", "b")
    )
    torch.testing.assert_close(advantages(tied, images()), advantages(apart, images()).sum()[None])


def test_a_choice_in_a_recurrence_has_the_advantage_of_all_time_steps():
    layer = problems.randomise(nn.Linear(6, 6, bias=False), problems.seeded(6))
    cell = Choice({"only": layer})
    model = nn.Sequential(cell, nn.Tanh(), cell, nn.Tanh(), cell)
    (slope,) = reward_slopes(model, images(), [layer.weight])
    torch.testing.assert_close(advantages(model, images()), (layer.weight * slope).sum()[None].detach())


@pytest.mark.parametrize("memory_format", FORMATS)
def test_a_search_reports_these_advantages(memory_format):
    """Search.architecture_step in single precision, at whatever it drew."""
    norms = {"a": norm_candidate([]), "b": norm_candidate(TAILS["relu"])}
    linears = {
        size: problems.randomise(nn.Conv2d(3, 3, size, padding=size // 2, bias=False), problems.seeded(size))
        for size in (1, 3)
    }
    model = nn.Sequential(
        Choice(norms, name="norm"), Choice({f"conv {size}": layer for size, layer in linears.items()}, name="conv")
    )
    model = model.float().to(memory_format=memory_format)
    x = images(memory_format).float()
    search = Search(model, architecture_optimizer=partial(torch.optim.SGD, lr=1.0))
    for _ in range(4):
        step = search.architecture_step(partial(loss_of, x=x))
        norm, layer = norms[step.architecture["norm"]][2], linears[int(step.architecture["conv"][-1])]
        weights = [norm.weight, norm.bias, layer.weight]
        with search.space.running(step.architecture):
            slopes = torch.autograd.grad(-loss_of(model, x), weights)
        gamma, beta, conv = ((w * slope).sum().item() for w, slope in zip(weights, slopes, strict=True))
        assert step.advantages == pytest.approx({"norm": gamma + beta, "conv": conv}, rel=1e-4, abs=1e-7)


def test_weights_that_fit_the_minibatch_leave_the_approximate_advantage_nothing_to_say():
    """At a stationary point dr/dW = 0, so A = <W, dr/dW> = 0; the exact advantage is what the fit is worth."""
    generator = problems.seeded(7)
    x, y = (problems.uniform(9, width, low=-1, high=1, generator=generator) for width in (4, 2))
    layer = nn.Linear(4, 2, bias=False).double()
    layer.weight.data = torch.linalg.lstsq(x, y).solution.T.contiguous()
    space = SearchSpace(nn.Sequential(Choice({"only": layer})))
    draw = Draw.gated(torch.ones(1, 1, dtype=torch.float64))
    seen = feedback(network_objective(space, lambda model: nn.functional.mse_loss(model(x), y)), draw)
    assert seen.slopes.item() == pytest.approx(0, abs=1e-14)
    assert seen.probe(draw.knock_outs()).item() - seen.loss.item() > 0.1


def cell(candidates):
    """Of every architecture of a cell: what is drawn and the approximate and exact advantages, by edge."""
    space, problem = problems.cell_problem(candidates)
    names = [decision.name for decision in space.decisions]
    chosen = dict(zip(names, problem.architectures.argmax(-1).unbind(1), strict=True))
    approximate, exact = (
        dict(zip(names, problems.advantages(problem, estimator(problem)).unbind(1), strict=True))
        for estimator in (problems.approximate_advantage, problems.exact_advantage)
    )
    return chosen, approximate, exact


def test_where_only_conv_bn_reads_a_node_the_advantages_into_it_add_up_to_zero():
    """The reward does not depend on the node's scale. Node 1 has one edge into it, node 2 two."""
    _, approximate, _ = cell(problems.two_convolutions)
    assert approximate["0->1"].abs().max() < 1e-9
    assert (approximate["0->2"] + approximate["1->2"]).abs().max() < 1e-9
    assert approximate["0->2"].abs().max() > 1e-3


def test_the_exact_advantage_has_no_such_blind_spot():
    _, _, exact = cell(problems.two_convolutions)
    assert exact["0->1"].abs().max() > 1e-3
    assert (exact["0->2"] + exact["1->2"]).abs().max() > 1e-3


def test_a_skip_connection_out_of_the_node_restores_the_signal():
    """Silent where all edges out of the node are convolutions, but not where one of them skips to the end."""
    chosen, approximate, _ = cell(problems.convolution_or_skip)
    convolutions_only = (chosen["1->2"] == 0) & (chosen["1->3"] == 0)
    assert approximate["0->1"][convolutions_only].abs().max() < 1e-9
    assert approximate["0->1"][chosen["1->3"] == 1].abs().min() > 1e-6
    into_node_2 = (approximate["0->2"] + approximate["1->2"]).abs()
    assert into_node_2[chosen["2->3"] == 0].max() < 1e-9
    assert into_node_2[chosen["2->3"] == 1].min() > 1e-6


def test_with_the_usual_eps_of_batch_norm_the_sum_is_still_small():
    """eps = 1e-5 lets the scale through a little."""
    _, approximate, _ = cell(partial(problems.two_convolutions, eps=1e-5))
    assert 0 < approximate["0->1"].abs().max() < 1e-3 * approximate["0->2"].abs().max()

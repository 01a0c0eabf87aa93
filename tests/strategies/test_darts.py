from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Distribution, Search
from advnas.strategies.darts import Darts
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 0.7, -0.4], [1.0, 1.0, -torch.inf]])


@pytest.mark.parametrize("phase", Phase)
def test_every_step_runs_the_mixture_of_all_operations(generator, phase):
    drawn = Darts().draw(LOGITS, {}, phase, None, generator)
    assert torch.equal(drawn.weights, Distribution(LOGITS).probabilities)
    assert torch.equal(drawn.active, LOGITS.isfinite())


def test_the_gradient_goes_through_the_softmax(feedback, generator):
    logits = LOGITS.clone().requires_grad_()
    drawn = Darts().draw(logits, {}, Phase.ARCHITECTURE, None, generator)
    slope = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gradient, _ = Darts().gradient(feedback(slope=slope), drawn, logits, {})
    mu = Distribution(LOGITS).probabilities
    assert torch.allclose(gradient, mu * (-slope + (mu * slope).sum(-1, keepdim=True)), atol=1e-6)


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return x * self.factor


def test_the_second_order_term_is_the_derivative_through_one_weight_step():
    """theta moves along -d valid(w - xi grad_w train(w, a), a)/dtheta; autograd knows all of it."""
    rate = 0.3

    def distance(output, target):
        return (output - target) ** 2

    model = nn.Sequential(Choice({"a": Scale(0.5), "b": Scale(2.0)}))
    search = Search(
        model,
        Darts(second_order=True),
        weight_optimizer=partial(torch.optim.SGD, lr=rate),
        architecture_optimizer=partial(torch.optim.SGD, lr=1.0),
        architecture_clip=None,
    )
    before = search.distribution.logits
    search.architecture_step(
        lambda model: distance(model(torch.ones(())), 3),
        training_loss_of=lambda model: distance(model(torch.ones(())), 5),
    )
    moved = search.distribution.logits - before

    theta, w = before.clone().requires_grad_(), torch.tensor([0.5, 2.0], requires_grad=True)
    a = theta[0].softmax(0)
    (slope,) = torch.autograd.grad(distance((a * w).sum(), 5), w, create_graph=True)
    ahead = w - rate * slope
    (expected,) = torch.autograd.grad(-distance((a * ahead).sum(), 3), theta, retain_graph=True)
    (first_term,) = torch.autograd.grad(-distance((a * ahead.detach()).sum(), 3), theta)
    assert torch.allclose(moved, expected, rtol=1e-2)
    assert not torch.allclose(moved, first_term, rtol=0.1)
    assert [candidate.factor.item() for candidate in model[0].candidates] == [0.5, 2.0]

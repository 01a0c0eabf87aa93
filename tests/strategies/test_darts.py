from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Distribution, Search
from advnas.search import constant
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


class Mixed(nn.Module):
    """tanh(head . (a_1 first x + a_2 second x)), all in float64."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        first, second = (nn.Linear(3, 3, bias=False) for _ in range(2))
        self.choice, self.head = (
            Choice({"first": first, "second": second}, name="choice"),
            nn.Linear(3, 1, bias=False),
        )
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)

    def forward(self, x):
        return self.head(self.choice(x)).tanh()


X = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
Y = torch.randn(2, 8, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def loss_of(model, part):
    return (model(X[part]) - Y[part]).square().mean()


def formula(a, weights, part):
    """The same loss, written out."""
    first, second, head = weights
    return ((a[0] * X[part] @ first.T + a[1] * X[part] @ second.T) @ head.T).tanh().sub(Y[part]).square().mean()


def step_of_theta(make_optimizer, weight_steps=5):
    """The direction in which theta moves after some weight steps, and what it was computed from."""
    model = Mixed()
    search = Search(
        model,
        Darts(second_order=True),
        weight_optimizer=make_optimizer,
        architecture_optimizer=partial(torch.optim.SGD, lr=1.0),
        architecture_clip=None,
        annealing=constant,
    )
    search.theta.assign(torch.tensor([[0.4, -0.3]]))
    for _ in range(weight_steps):
        search.weight_step(partial(loss_of, part=0))
    before, weights = search.distribution.logits, [weight.detach().clone() for weight in model.parameters()]
    optimizer = search.weights.optimizer
    buffers = [optimizer.state[weight].get("momentum_buffer") for weight in model.parameters()]
    search.architecture_step(partial(loss_of, part=1), training_loss_of=partial(loss_of, part=0))
    assert all(map(torch.equal, model.parameters(), weights))
    return search.distribution.logits - before, before, weights, buffers


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def original(theta, weights, buffers, *, rate, momentum, decay):
    """The unrolled gradient as the original's architect computes it, with theta's sign turned to ascent."""
    theta = theta[0].clone().requires_grad_()

    def slopes(w, part):
        w = [weight.clone().requires_grad_() for weight in w]
        return torch.autograd.grad(formula(theta.softmax(0), w, part), [theta, *w])

    ahead = [
        w - rate * (momentum * buffer + slope + decay * w)
        for w, buffer, slope in zip(weights, buffers, slopes(weights, 0)[1:], strict=True)
    ]
    direct, *vector = slopes(ahead, 1)
    epsilon = 0.01 / torch.cat([part.flatten() for part in vector]).norm()
    plus, minus = (
        slopes([w + sign * epsilon * v for w, v in zip(weights, vector, strict=True)], 0)[0] for sign in (1, -1)
    )
    return -(direct - rate * (plus - minus) / (2 * epsilon))


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_second_order_gradient_is_that_of_the_original_with_momentum_and_weight_decay(nesterov):
    settings = {"momentum": 0.9, "weight_decay": 0.05}
    moved, theta, weights, buffers = step_of_theta(partial(torch.optim.SGD, lr=0.3, nesterov=nesterov, **settings))
    expected = original(theta, weights, buffers, rate=0.3, momentum=0.9, decay=0.05)
    assert torch.allclose(moved[0], expected, rtol=1e-10, atol=0)
    without = original(theta, weights, buffers, rate=0.3, momentum=0.0, decay=0.0)
    assert not torch.allclose(moved[0], without, rtol=0.1)


def exact(theta, weights, step, rates):
    """d/dtheta of the validation loss after the step, by automatic differentiation."""
    theta = theta.clone().requires_grad_()
    a, w = theta[0].softmax(0), [weight.clone().requires_grad_() for weight in weights]
    slopes = torch.autograd.grad(formula(a, w, 0), w, create_graph=True)
    ahead = [
        weight - rate * step(n, slope) for n, (weight, slope, rate) in enumerate(zip(w, slopes, rates, strict=True))
    ]
    return torch.autograd.grad(-formula(a, ahead, 1), theta)[0]


@pytest.mark.usefixtures("_double")
def test_every_parameter_group_has_its_own_virtual_step():
    def grouped(parameters):
        groups = [
            {"params": parameters[:2], "lr": 0.3, "momentum": 0.5, "weight_decay": 0.0},
            {"params": parameters[2:], "lr": 0.1, "momentum": 0.0, "weight_decay": 0.2},
        ]
        return torch.optim.SGD(groups, lr=1.0)

    moved, theta, weights, buffers = step_of_theta(grouped)

    def step(number, slope):
        return slope + 0.5 * buffers[number] if number < 2 else slope + 0.2 * weights[number]

    assert torch.allclose(moved, exact(theta, weights, step, [0.3, 0.3, 0.1]), rtol=1e-3)


@pytest.mark.usefixtures("_double")
def test_other_optimisers_get_a_plain_gradient_step():
    moved, theta, weights, _ = step_of_theta(partial(torch.optim.Adam, lr=0.1, weight_decay=0.1))
    assert torch.allclose(moved, exact(theta, weights, lambda _, slope: slope, [0.1] * 3), rtol=1e-3)


@pytest.mark.usefixtures("_double")
def test_before_the_first_weight_step_there_is_no_momentum():
    settings = {"momentum": 0.9, "weight_decay": 0.05}
    moved, theta, weights, buffers = step_of_theta(partial(torch.optim.SGD, lr=0.3, **settings), weight_steps=0)
    assert buffers == [None] * 3
    expected = original(theta, weights, [torch.zeros(())] * 3, rate=0.3, momentum=0.9, decay=0.05)
    assert torch.allclose(moved[0], expected, rtol=1e-10, atol=0)

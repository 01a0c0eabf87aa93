"""Where a gate enters a candidate changes neither its value nor any slope; only what is kept and computed."""

import numpy as np
import pytest
import torch
from torch import nn

from advnas import Choice, Draw, SearchSpace, gates
from advnas.gates import find_placement, map_tensors


@pytest.fixture(autouse=True, params=[0, gates.gate._SMALL], ids=["as in large networks", "as in small ones"])
def _both_kinds_of_gate(request, monkeypatch):
    """A gate of 1 on a small tensor is a multiplication; the tensors here are all small."""
    monkeypatch.setattr(gates.gate, "_SMALL", request.param)


LAYOUTS = [torch.contiguous_format, torch.channels_last]


class Opaque(nn.Module):
    """Hides what a candidate is made of, so that its gate is a plain multiplication."""

    def __init__(self, candidate):
        super().__init__()
        self.inside = candidate

    def forward(self, *args, **kwargs):
        return self.inside(*args, **kwargs)


def run(choice, weights, *args, gated=True, active=None, **kwargs):
    """The choice's output under the given weights of its candidates, and the draw."""
    weights = torch.tensor([weights])
    draw = Draw(weights.requires_grad_(gated), weights != 0 if active is None else torch.tensor([active]))
    with SearchSpace(choice).running(draw):
        return choice(*args, **kwargs), draw


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# The gate inside the last BatchNorm


class Declared(nn.Module):
    """A module of one's own that says which BatchNorm scales its output."""

    def __init__(self, affine):
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.last_norm = nn.BatchNorm2d(4, affine=affine)

    def forward(self, x):
        return self.last_norm(self.convolution(x.relu()))


def sequential(*after, affine):
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, affine=affine), *after)


CANDIDATES = {
    "norm": lambda affine: nn.BatchNorm2d(4, affine=affine),
    "conv-norm": lambda affine: sequential(affine=affine),
    "conv-norm-relu": lambda affine: sequential(nn.ReLU(), affine=affine),
    "conv-norm-relu-dropout-pool": lambda affine: sequential(
        nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2), affine=affine
    ),
    "conv-norm-max-flatten": lambda affine: sequential(nn.MaxPool2d(2), nn.Flatten(), affine=affine),
    "nested": lambda affine: nn.Sequential(nn.ReLU(), sequential(nn.LeakyReLU(), affine=affine), nn.Identity()),
    "declared": Declared,
}


def make(kind, affine):
    """A candidate with weights of its own, none of them 0 or 1."""
    candidate = CANDIDATES[kind](affine)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in [*candidate.parameters(), *(b for b in candidate.buffers() if b.is_floating_point())]:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.2)
    return candidate


@pytest.mark.parametrize("kind", CANDIDATES)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_a_gate_as_gamma_equals_a_multiplication(kind, affine, training, layout, weight):
    assert find_placement(make(kind, affine)).norm is not None
    outcomes = []
    for opaque in (False, True):
        candidate = make(kind, affine).train(training)
        choice = Choice({"only": Opaque(candidate) if opaque else candidate})
        x = randn(3, 4, 6, 6).to(memory_format=layout).requires_grad_()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            output, draw = run(choice, [weight], x)
        slopes = torch.autograd.grad(output, [draw.weights, x, *candidate.parameters()], randn(*output.shape))
        outcomes.append([output, *slopes, *candidate.buffers()])
    for as_gamma, as_product in zip(*outcomes, strict=True):
        assert torch.allclose(as_gamma, as_product, rtol=1e-4, atol=1e-4)


def test_a_gate_as_gamma_leaves_the_norm_as_it_was_even_if_the_candidate_fails():
    class Crash(nn.Conv2d):
        def forward(self, x):
            raise RuntimeError("boom")

    candidate = nn.Sequential(Crash(4, 4, 1), nn.BatchNorm2d(4))
    before = dict(candidate.named_parameters())
    with pytest.raises(RuntimeError, match="boom"):
        run(Choice({"only": candidate}), [1.0], randn(3, 4, 6, 6))
    after = dict(candidate.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is parameter for name, parameter in before.items())


def saved_bytes(choice, gated):
    """How much a forward pass keeps for the backward pass."""
    sizes = []

    def keep(tensor):
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(choice, [1.0], randn(3, 4, 6, 6).requires_grad_(), gated=gated)
    return sum(sizes)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("kind", ["conv-norm", "conv-norm-relu", "declared"])
def test_a_gate_as_gamma_keeps_no_output_for_the_backward_pass(kind, affine):
    channels, activation = 4 * 4, randn(3, 4, 6, 6).nbytes
    choice, opaque = Choice({"only": make(kind, affine)}), Choice({"only": Opaque(make(kind, affine))})
    assert saved_bytes(choice, gated=True) <= saved_bytes(choice, gated=False) + 3 * channels
    assert saved_bytes(opaque, gated=True) >= saved_bytes(opaque, gated=False) + activation


@pytest.mark.parametrize(
    "candidate",
    [
        nn.Conv2d(4, 4, 1),
        nn.Sequential(),
        nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)),
        nn.Sequential(nn.BatchNorm2d(4), nn.Sigmoid()),
        nn.Sequential(nn.BatchNorm2d(4), nn.GELU()),
        nn.Sequential(*[nn.BatchNorm2d(4)] * 2),
        nn.Sequential(nn.Identity(), Choice({"norm": nn.BatchNorm2d(4)})),
        Opaque(nn.BatchNorm2d(4)),
    ],
    ids=lambda candidate: type(candidate).__name__,
)
def test_no_norm_is_found_where_its_scale_is_not_the_scale_of_the_output(candidate):
    assert find_placement(candidate).norm is None


class NormSilu(nn.BatchNorm2d):
    def forward(self, x):
        return nn.functional.silu(super().forward(x))


def shared_norm():
    norm = nn.BatchNorm2d(4)
    return nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1), norm), nn.Conv2d(4, 4, 1), norm)


@pytest.mark.parametrize("candidate", [lambda: NormSilu(4), shared_norm], ids=["own forward", "two depths"])
def test_no_norm_is_found_where_it_does_more_than_scale(candidate):
    assert find_placement(candidate()).norm is None


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_a_gate_as_gamma_has_the_precision_of_its_norm(affine):
    output, draw = run(Choice({"only": make("conv-norm", affine).double()}), [1.0], randn(3, 4, 6, 6).double())
    assert output.dtype is torch.float64
    assert torch.autograd.grad(output.square().sum(), draw.weights)[0].isfinite().all()


# The gate in front of what passes a scale on


PASSING = {
    "skip": nn.Identity(),
    "relu": nn.ReLU(),
    "leaky": nn.LeakyReLU(0.2),
    "dropout": nn.Dropout(0.5),
    "average": nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
    "max": nn.MaxPool2d(3, stride=2, padding=1),
    "adaptive": nn.AdaptiveAvgPool2d(2),
    "sequence": nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
}


@pytest.mark.parametrize("kind", PASSING)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_a_gate_in_front_equals_a_gate_behind(kind, layout, weight):
    assert find_placement(PASSING[kind]).front
    assert not find_placement(Opaque(PASSING[kind])).front
    outcomes = []
    for candidate in (PASSING[kind], Opaque(PASSING[kind])):
        x = randn(3, 4, 6, 6).to(memory_format=layout).requires_grad_()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            output, draw = run(Choice({"only": candidate}), [weight], x)
        outcomes.append([output, *torch.autograd.grad(output, [draw.weights, x], randn(*output.shape))])
    for in_front, behind in zip(*outcomes, strict=True):
        assert torch.allclose(in_front, behind, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "candidate",
    [
        nn.Sequential(),
        nn.Linear(4, 4),
        nn.Sequential(nn.ReLU(), nn.Sigmoid()),
        nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(4, 4, 1)),
        type("OwnReLU", (nn.ReLU,), {"forward": lambda self, x: x + 1})(),
    ],
    ids=["nothing", "linear", "sigmoid", "bias", "own forward"],
)
def test_nothing_else_has_its_gate_in_front(candidate):
    assert not find_placement(candidate).front


def test_a_negative_weight_is_never_passed_through_a_relu():
    output, draw = run(Choice({"relu": nn.ReLU()}), [-0.5], torch.tensor([-1.0, 2.0]))
    assert output.tolist() == [0.0, -1.0]
    assert torch.autograd.grad(output.sum(), draw.weights)[0].item() == 2


# The gate of 1


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
def test_an_in_place_relu_may_follow_a_choice(weights):
    choice = Choice({"linear": nn.Linear(3, 3), "skip": nn.Identity()})
    network = nn.Sequential(nn.Linear(3, 3), choice, nn.ReLU(inplace=True))
    draw = Draw(torch.tensor([weights], requires_grad=True), torch.tensor([[True, True]]))
    with SearchSpace(network).running(draw):
        output = network(randn(4, 3))
    with SearchSpace(network).running(Draw(draw.weights.detach(), draw.active)):
        assert torch.allclose(output, network(randn(4, 3)))
    slope, *_ = torch.autograd.grad(output.sum(), [draw.weights, *network.parameters()], allow_unused=True)
    assert slope.isfinite().all()
    assert slope.any()


@pytest.mark.parametrize(
    "candidate",
    [nn.Identity(), nn.LeakyReLU(0.2), Opaque(nn.Tanh()), nn.Linear(3, 3)],
    ids=["skip", "in front", "keeps its output", "linear"],
)
def test_working_in_place_after_a_choice_spoils_neither_its_input_nor_what_is_kept(candidate):
    """The output of a gate of 1 shares memory with its input until someone writes into one of them."""
    outcomes = []
    for in_place in (True, False):
        x = randn(4, 3).requires_grad_()
        inside = x * 2
        output, draw = run(Choice({"only": candidate}), [1.0], inside)
        after = output.mul_(3).add_(1) if in_place else output * 3 + 1
        assert torch.equal(inside, 2 * x)
        outcomes.append([after, *torch.autograd.grad(after, [draw.weights, x], randn(4, 3))])
    for ours, plain in zip(*outcomes, strict=True):
        assert torch.allclose(ours, plain)


def test_writing_into_the_input_after_a_choice_does_not_reach_its_output():
    x = randn(4, 3)
    output, _ = run(Choice({"skip": nn.Identity()}), [1.0], x)
    x.zero_()
    assert torch.equal(output, randn(4, 3))


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_memory_of_numpy_may_be_the_input(weight):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    output, draw = run(Choice({"skip": nn.Identity()}), [weight], torch.from_numpy(array))
    output = output.add_(1)
    assert array.ravel().tolist() == list(range(6))
    assert output.sum().item() == 15 * weight + 6
    assert torch.autograd.grad(output.sum(), draw.weights)[0].item() == 15


@pytest.mark.parametrize(
    "gradient",
    [randn(3, 4, 6, 6), randn(3, 4, 6, 6).to(memory_format=torch.channels_last), torch.ones(()).expand(3, 4, 6, 6)],
    ids=["contiguous", "channels_last", "one number"],
)
@pytest.mark.parametrize("layout", [*LAYOUTS, None], ids=["contiguous", "channels_last", "transposed"])
def test_the_slope_does_not_depend_on_the_order_in_memory(layout, gradient):
    x = randn(3, 4, 6, 6).transpose(2, 3) if layout is None else randn(3, 4, 6, 6).to(memory_format=layout)
    output, draw = run(Choice({"skip": nn.Identity()}), [1.0], x)
    (slope,) = torch.autograd.grad(output, draw.weights, gradient)
    assert slope.item() == pytest.approx((x * gradient).sum().item(), rel=1e-4)


@pytest.mark.parametrize("kind", [nn.Softplus, lambda: sequential(affine=True), lambda: nn.Conv2d(4, 4, 1)])
def test_a_gate_of_1_can_be_differentiated_twice(kind):
    """As by a penalty on the gradient; the definition is a multiplication by the weight."""
    torch.manual_seed(0)
    candidate, x = kind(), randn(3, 4, 6, 6).requires_grad_()
    output, draw = run(Choice({"one": candidate}), [1.0], x)
    weight = torch.ones((), requires_grad=True)

    def slopes(output, weight):
        (inner,) = torch.autograd.grad(output.sin().sum(), x, create_graph=True)
        return torch.autograd.grad(inner.square().mean() + output.mean(), (weight, x))

    ours, plain = slopes(output, draw.weights), slopes(weight * candidate(x), weight)
    assert ours[0].item() == pytest.approx(plain[0].item(), rel=1e-4)
    assert torch.allclose(ours[1], plain[1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("output", [nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Softplus())], ids=["tanh", "mlp"])
def test_the_slope_of_a_loss_with_a_second_derivative_is_that_of_finite_differences(output):
    """As of a gradient penalty: the slopes of the network are part of the loss, and a gate of 1 of them."""
    torch.manual_seed(0)
    choices = [Choice({"only": output}, name="first"), Choice({"only": nn.Tanh()}, name="second")]
    network = nn.Sequential(nn.Linear(3, 4), *choices, nn.Linear(4, 1)).double()
    space, x = SearchSpace(network), randn(5, 3).double().requires_grad_()

    def loss(draw):
        with space.running(draw):
            (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        return slope.square().mean()

    gated, weights, step = Draw.gated(torch.ones(2, 1).double()), torch.ones(2, 1).double(), 1e-5
    for decision in range(2):
        shift = step * torch.eye(2).double()[:, [decision]]
        up, down = (loss(Draw(weights + sign * shift, weights != 0)) for sign in (1, -1))
        (slopes,) = torch.autograd.grad(loss(gated), gated.weights)
        assert slopes[decision].item() == pytest.approx(((up - down) / (2 * step)).item(), rel=1e-6)


def test_tied_choices_add_up_their_slopes():
    choices = [Choice({"skip": nn.Identity()}, name="tied") for _ in range(3)]
    network = nn.Sequential(*choices)
    draw = Draw.gated(torch.ones(1, 1))
    with SearchSpace(network).running(draw):
        output = network(torch.tensor([2.0]))
    assert torch.autograd.grad(output, draw.weights)[0].item() == 6


# Precision


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_gates_work_in_any_precision(dtype, weight):
    candidate = nn.Linear(3, 3, dtype=dtype)
    output, draw = run(Choice({"linear": candidate}), [weight], randn(2, 3).to(dtype))
    assert output.dtype is dtype
    (slope,) = torch.autograd.grad(output.sum(), draw.weights)
    assert slope.item() == pytest.approx(
        output.sum().item() / weight, rel=0.05 if dtype is torch.bfloat16 else 1e-5
    )


def test_mixed_precision_runs_forward_and_back():
    """Convolutions in bfloat16 and norms in float32, as autocast has it, with gates in both kinds of places."""
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        Choice({"conv": sequential(affine=False), "bare": nn.Conv2d(4, 4, 1)}, name="first"),
        Choice({"pool": nn.AvgPool2d(2), "half": nn.Conv2d(4, 4, 2, stride=2)}, name="second"),
    )
    space, x = SearchSpace(network), randn(4, 3, 6, 6)
    for architecture in space.architectures():
        slopes = []
        for enabled in (True, False):
            draw = Draw.gated(space.one_hot(architecture))
            with space.running(draw), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = network(x).float().square().mean()
            slopes.append(torch.autograd.grad(loss, draw.weights)[0])
        assert slopes[0].dtype is torch.float32
        assert torch.allclose(*slopes, rtol=0.05, atol=0.02)


# Containers


def test_map_tensors_leaves_everything_but_tensors_as_it_is():
    tree = {"a": [torch.ones(1), 2], "b": (None, torch.zeros(1))}
    mapped = map_tensors(lambda one, other: one + other, tree, tree)
    assert mapped == {"a": [torch.tensor([2.0]), 2], "b": (None, torch.tensor([0.0]))}

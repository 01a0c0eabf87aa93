"""Whatever a candidate is made of, its slope is that of central differences, or it is refused by name."""

import dataclasses
import warnings
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from advnas import Choice, Draw, Search, SearchSpace, Zero
from advnas.gates import find_placement, tensors_in

WIDTH = 4


def norm():
    """Neither gamma nor beta is what it is at first, so that a gate in the wrong place shows."""
    made = nn.BatchNorm1d(WIDTH)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    nn.init.uniform_(made.bias, -1.0, 1.0)
    return made


def block(*after):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(), *after)


class Function(nn.Module):
    """A candidate that computes a function, of its input and of a module inside."""

    def __init__(self, function, **inside):
        super().__init__()
        self.function = function
        for name, module in inside.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.function(self, x)


def hooked(module, part, register, hook):
    getattr(part(module), register)(hook)
    return module


def twice(module, args, output):
    return output * 2


def with_forward(module, part):
    """A `forward` of this one object."""
    target = part(module)
    inherited = target.forward
    target.forward = lambda x: inherited(x) + 1
    return module


class CalledTwice(nn.BatchNorm1d):
    def __call__(self, x):
        return super().__call__(super().__call__(x))


class AddsItsInput(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) + x


class OwnScale(nn.BatchNorm1d):
    """Its `weight` is computed, and more than once."""

    def __init__(self, width):
        super().__init__(width)
        del self.weight
        self.raw = nn.Parameter(torch.rand(width))

    @property
    def weight(self):
        return self.raw**2 + 0.5

    @weight.setter
    def weight(self, value):
        pass


class Square(nn.Module):
    def forward(self, weight):
        return weight**2 + 0.5


class PlusSequence(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + x


class CalledSequence(nn.Sequential):
    def __call__(self, x):
        return super().__call__(x) + x


class Backwards(nn.Sequential):
    def __iter__(self):
        return reversed(list(self._modules.values()))


class Declares(nn.Module):
    """Says that its norm is the last to scale."""

    def __init__(self, after):
        super().__init__()
        self.linear, self.last_norm, self.after = nn.Linear(WIDTH, WIDTH), norm(), after

    def forward(self, x):
        return self.after(self.last_norm(self.linear(x)), x)


def shared_norm():
    inside = norm()
    return nn.Sequential(nn.Sequential(nn.Linear(WIDTH, WIDTH), inside), nn.Linear(WIDTH, WIDTH), inside)


def hidden_norm():
    """The last norm is used before as well, by somebody who does not tell."""
    candidate = block()
    last = candidate[1]
    candidate[0] = Function(lambda self, x: self.linear(x), linear=candidate[0])
    candidate.insert(0, Function(lambda self, x: x + 0.5 * self.inside[0](x)))
    candidate[0].inside = [nn.Tanh()]
    assert candidate[2] is last
    return candidate


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inside = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.inside(x[:, None])[0][:, 0]


Pair = namedtuple("Pair", "one other")


@dataclasses.dataclass
class Output:
    value: torch.Tensor
    size: int = 3
    more: object = None


@dataclasses.dataclass(frozen=True)
class FrozenOutput:
    value: torch.Tensor
    loss: torch.Tensor


@dataclasses.dataclass
class ModelOutput(OrderedDict):
    """Made as the outputs of transformers are: a dataclass that is a dict of its fields that are not None."""

    logits: torch.Tensor = None
    hidden: torch.Tensor = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                super().__setitem__(field.name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self):
        kind, _, *rest = super().__reduce__()
        return (kind, tuple(getattr(self, field.name) for field in dataclasses.fields(self)), *rest)


class OwnDict(dict):
    pass


class OwnList(list):
    pass


class Registered:
    def __init__(self, value):
        self.value = value


torch.utils._pytree.register_pytree_node(
    Registered, lambda node: ([node.value], None), lambda values, _: Registered(*values)
)


def returns(make):
    return Function(lambda self, x: make(self.linear(x)), linear=nn.Linear(WIDTH, WIDTH))


def pruned(module, part):
    prune.random_unstructured(part(module), "weight", amount=0.5)
    return module


def parametrised(module, part, what=Square, name="weight"):
    parametrize.register_parametrization(part(module), name, what())
    return module


FIRST, LAST, WHOLE = (lambda module: module[0]), (lambda module: module[-1]), (lambda module: module)

ODD = {
    # norms
    "BatchNorm": norm,
    "BatchNorm without scale": lambda: nn.BatchNorm1d(WIDTH, affine=False),
    "BatchNorm without statistics": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "BatchNorm with cumulative statistics": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(WIDTH),
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "GroupNorm": lambda: nn.GroupNorm(2, WIDTH),
    "RMSNorm": lambda: nn.RMSNorm(WIDTH),
    "LocalResponseNorm": lambda: Function(
        lambda self, x: self.inside(x[:, :, None])[:, :, 0], inside=nn.LocalResponseNorm(2)
    ),
    "InstanceNorm": lambda: Function(
        lambda self, x: self.inside(x[..., None] * torch.arange(1.0, 4.0, dtype=x.dtype))[..., 0],
        inside=nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True),
    ),
    "norm of its own class": lambda: AddsItsInput(WIDTH),
    "norm with a computed scale": lambda: OwnScale(WIDTH),
    "norm that is called twice": lambda: CalledTwice(WIDTH),
    "norm then dropout": lambda: block(nn.Dropout(0.5)),
    "norm then in-place ReLU": lambda: block(nn.ReLU(inplace=True)),
    "norm then ReLU6": lambda: block(nn.ReLU6()),
    "norm then sigmoid": lambda: block(nn.Sigmoid()),
    "norm then PReLU": lambda: block(nn.PReLU()),
    # hooks
    "hook on the norm": lambda: hooked(block(), LAST, "register_forward_hook", twice),
    "hook on the norm that adds": lambda: hooked(
        block(), LAST, "register_forward_hook", lambda module, args, output: output + args[0]
    ),
    "pre-hook on the norm": lambda: hooked(
        block(), LAST, "register_forward_pre_hook", lambda module, args: (args[0] * module.weight,)
    ),
    "hook on the sequence": lambda: hooked(
        block(), WHOLE, "register_forward_hook", lambda module, args, output: output + args[0]
    ),
    "hook on what follows": lambda: hooked(
        block(nn.ReLU()), LAST, "register_forward_hook", lambda module, args, output: output.sin()
    ),
    "hook on what is in front": lambda: hooked(block(), FIRST, "register_forward_hook", twice),
    "hook on a skip": lambda: hooked(
        nn.Identity(), WHOLE, "register_forward_hook", lambda module, args, output: output + 1
    ),
    "pre-hook on a skip": lambda: hooked(
        nn.Identity(), WHOLE, "register_forward_pre_hook", lambda module, args: (args[0] ** 2,)
    ),
    "hook with keywords": lambda: hooked(
        nn.ReLU(), WHOLE, "register_forward_hook", lambda module, args, output: output.cos()
    ),
    "backward hook on the norm": lambda: hooked(
        block(), LAST, "register_full_backward_hook", lambda module, inputs, outputs: (inputs[0] * 3,)
    ),
    "backward pre-hook on the norm": lambda: hooked(
        block(), LAST, "register_full_backward_pre_hook", lambda module, outputs: (outputs[0] * 3,)
    ),
    "backward hook on a skip": lambda: hooked(
        nn.Sequential(nn.Identity()), FIRST, "register_full_backward_pre_hook", lambda _, outputs: (outputs[0] * 3,)
    ),
    # calls
    "forward of one norm": lambda: with_forward(block(), LAST),
    "forward of one sequence": lambda: with_forward(block(), WHOLE),
    "forward of one skip": lambda: with_forward(nn.Identity(), WHOLE),
    "sequence that adds": lambda: PlusSequence(*block()),
    "sequence with a call of its own": lambda: CalledSequence(*block()),
    "sequence that runs backwards": lambda: Backwards(norm(), nn.Linear(WIDTH, WIDTH)),
    # parametrisations
    "parametrised norm": lambda: parametrised(block(), LAST),
    "parametrised bias of a norm": lambda: parametrised(block(), LAST, name="bias"),
    "parametrised linear": lambda: parametrised(block(), FIRST),
    "pruned norm": lambda: pruned(block(), LAST),
    "pruned linear": lambda: pruned(block(), FIRST),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)),
    "spectral norm by a hook": lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "weight norm in front of a norm": lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), norm()
    ),
    # declared norms
    "declared, and last": lambda: Declares(lambda y, x: y),
    "declared, then ReLU": lambda: Declares(lambda y, x: y.relu()),
    "declared, with a hook inside": lambda: hooked(
        Declares(lambda y, x: y), lambda module: module.last_norm, "register_forward_hook", twice
    ),
    "declared in a sequence": lambda: nn.Sequential(Declares(lambda y, x: y), nn.ReLU()),
    # shared
    "one norm at two depths": shared_norm,
    "one linear twice": lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH)] * 2, norm()),
    "function in front of a norm": hidden_norm,
    # in place, on what it has made
    "in-place ReLU inside": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "in-place addition inside": lambda: returns(lambda y: y.add_(1.0)),
    # layers
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "attention": lambda: Function(
        lambda self, x: self.inside(x[None], x[None], x[None])[0][0],
        inside=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
    ),
    "zero": Zero,
    "bilinear": lambda: Function(lambda self, x: self.inside(x, x), inside=nn.Bilinear(WIDTH, WIDTH, WIDTH)),
    "leaky ReLU": lambda: nn.LeakyReLU(-0.5),
    "max pooling": lambda: Function(
        lambda self, x: self.inside(x[:, None])[:, 0], inside=nn.MaxPool1d(3, stride=1, padding=1)
    ),
    # containers
    "tuple": lambda: returns(lambda y: (y, y.sin())),
    "nested": lambda: returns(lambda y: {"a": [y, (y.cos(), "text", 3, None)]}),
    "named tuple": lambda: returns(lambda y: Pair(y, y.sin())),
    "torch's own named tuple": lambda: returns(lambda y: y.max(0)),
    "ordered dict": lambda: returns(lambda y: OrderedDict(a=y)),
    "dict of its own class": lambda: returns(lambda y: OwnDict(a=y)),
    "list of its own class": lambda: returns(lambda y: OwnList([y])),
    "dataclass": lambda: returns(Output),
    "dataclass in a list": lambda: returns(lambda y: [Output(y, more=(y.sin(),))]),
    "frozen dataclass": lambda: returns(lambda y: FrozenOutput(y, y.sum())),
    "output of transformers": lambda: returns(lambda y: ModelOutput(logits=y, hidden=y.sin())),
    "output of transformers in part": lambda: returns(lambda y: ModelOutput(logits=y)),
    "registered class": lambda: returns(Registered),
    "packed sequence": lambda: returns(
        lambda y: nn.utils.rnn.pack_padded_sequence(y[None], torch.tensor([len(y)]), batch_first=True)
    ),
    "complex": lambda: returns(lambda y: torch.complex(y, y.sin())),
    "with a mask": lambda: returns(lambda y: (y, y > 0, torch.arange(3))),
}


def make(kind):
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older ways of torch
        torch.manual_seed(0)
        return ODD[kind]().double()


X = torch.randn(6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss_of(output):
    """No symmetry hides a wrong factor; complex numbers count by both of their parts."""
    leaves = [leaf for leaf in tensors_in(output) if leaf.is_floating_point() or leaf.is_complex()]
    parts = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in leaves]
    return sum(
        (part * torch.linspace(-1, 2, part.numel(), dtype=part.dtype).view(part.shape)).sum() for part in parts
    )


def loss_at(choice, weight, *, gated):
    """exp keeps the loss from being linear in the weight."""
    space = SearchSpace(choice)
    weights = torch.tensor([[weight]], dtype=torch.float64, requires_grad=gated)
    with torch.random.fork_rng(), space.running(Draw(weights, torch.tensor([[True]]))):
        torch.manual_seed(7)
        loss = torch.exp(loss_of(choice(X.clone())) / 8)
    return loss, weights


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
def test_the_slope_is_that_of_central_differences(kind, training):
    """The differences are taken without any gate: the output is multiplied by a number, behind the candidate."""
    h = 1e-5
    for weight in (1.0, 0.7):
        (plus, _), (minus, _) = (loss_at(fresh(kind, training), weight + d, gated=False) for d in (h, -h))
        expected = ((plus - minus) / (2 * h)).item()
        bare, _ = loss_at(fresh(kind, training), weight, gated=False)
        loss, weights = loss_at(fresh(kind, training), weight, gated=True)
        (slope,) = torch.autograd.grad(loss, weights)
        assert loss.item() == pytest.approx(bare.item(), rel=1e-9)
        assert slope.item() == pytest.approx(expected, rel=1e-5, abs=1e-7)


def fresh(kind, training):
    return Choice({"odd": make(kind)}).double().train(training)


def test_there_are_enough_of_them():
    assert len(ODD) >= 60


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "kind", [kind for kind in ODD if kind not in ("orthogonal", "complex", "packed sequence", "SyncBatchNorm")]
)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
def test_any_precision_gives_a_slope_of_its_own_accuracy(kind, dtype):
    if dtype is torch.float16 and kind in ("LocalResponseNorm", "InstanceNorm", "attention", "LSTM", "GRU"):
        pytest.skip("torch has no such kernel on a CPU, or none of use")
    exact = slope_in(torch.float64, kind)
    found = slope_in(dtype, kind)
    tolerance = {torch.float16: 0.05, torch.bfloat16: 0.3, torch.float32: 1e-3}[dtype]
    assert found == pytest.approx(exact, rel=tolerance, abs=tolerance * 10)


def slope_in(dtype, kind):
    candidate = make(kind).to(dtype).eval()
    choice = Choice({"odd": candidate})
    weights = torch.ones(1, 1, requires_grad=True)
    with SearchSpace(choice).running(Draw(weights, torch.tensor([[True]]))):
        output = choice(X.to(dtype))
    leaves = [leaf for leaf in tensors_in(output) if leaf.is_floating_point()]
    (slope,) = torch.autograd.grad(sum(leaf.double().sum() for leaf in leaves), weights)
    return slope.item()


# Hooks that come later, or for all modules at once


@pytest.mark.parametrize("candidate", [lambda: block(nn.ReLU()), nn.Identity], ids=["norm", "skip"])
def test_a_hook_may_come_after_the_search_was_made(candidate):
    choice = Choice({"odd": candidate().double()})
    space = SearchSpace(choice)
    part = choice.candidates[0][-1] if isinstance(choice.candidates[0], nn.Sequential) else choice.candidates[0]
    handle = part.register_forward_hook(lambda module, args, output: output + 1)
    weights = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    with space.running(Draw(weights, torch.tensor([[True]]))):
        total = choice(X).sum()
    assert torch.autograd.grad(total, weights)[0].item() == pytest.approx(total.item())
    handle.remove()


def test_a_hook_for_all_modules_is_minded():
    choice = Choice({"odd": block().double()})
    weights = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: output + 1 if isinstance(module, nn.BatchNorm1d) else None
    )
    try:
        with SearchSpace(choice).running(Draw(weights, torch.tensor([[True]]))):
            total = choice(X).sum()
    finally:
        handle.remove()
    assert torch.autograd.grad(total, weights)[0].item() == pytest.approx(total.item())


def test_a_gate_does_not_move_along_a_node_past_a_hook():
    """The reader with the hook does not pass a scale on."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = Choice({"linear": nn.Linear(WIDTH, WIDTH)}, name="make", edge=("0", "1"))
            self.read = Choice({"skip": nn.Identity()}, name="read", edge=("1", "2"))

        def forward(self, x):
            return self.read(self.make(x))

    cell = Cell().double()
    space = SearchSpace(cell)
    draw = Draw(torch.ones(2, 1, dtype=torch.float64, requires_grad=True), torch.ones(2, 1, dtype=torch.bool))
    assert space.scalable_nodes(draw)
    cell.read.candidates[0].register_forward_hook(lambda module, args, output: output + 1)
    assert not space.scalable_nodes(draw)
    with space.running(draw):
        total = cell(X).sum()
    slope = torch.autograd.grad(total, draw.weights)[0][1, 0].item()
    assert slope == pytest.approx(total.item())


def test_a_patched_class_is_not_trusted(monkeypatch):
    monkeypatch.setattr(nn.BatchNorm1d, "forward", lambda self, x: x + self.weight)
    assert find_placement(block()).norm is None
    monkeypatch.setattr(nn.Identity, "forward", lambda self, x: x + 1)
    assert not find_placement(nn.Identity()).front


def test_a_compiled_module_is_not_trusted():
    compiled = block()
    placement = find_placement(compiled)
    assert placement.holds
    compiled[-1].compile(backend="eager")
    assert not placement.holds


# Declared norms


LIES = {
    "adds its input": lambda y, x: y + x,
    "is not linear": lambda y, x: nn.functional.silu(y),
    "saturates": lambda y, x: y.clamp(-1, 1),
    "is normalised again": lambda y, x: y / y.norm(),
}


@pytest.mark.parametrize("after", LIES.values(), ids=LIES)
def test_a_declared_norm_is_tried_once_and_told(after):
    torch.manual_seed(0)
    candidate = Declares(after).double()
    choice = Choice({"lie": candidate}, name="edge")
    before = snapshot(candidate)
    space = SearchSpace(choice)
    weights = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    with space.running(Draw(weights, torch.tensor([[True]]))):
        with pytest.warns(UserWarning, match=r"'lie' of choice 'edge' declares a last_norm.*Remove the attribute"):
            total = choice(X).sum()
        assert torch.autograd.grad(total, weights)[0].item() == pytest.approx(total.item())
        choice(X)  # not told again
    assert candidate.last_norm.num_batches_tracked.item() == before["last_norm.num_batches_tracked"].item() + 2


def test_trying_a_declared_norm_leaves_buffers_and_generators_alone():
    candidate = Declares(lambda y, x: nn.functional.dropout(y, 0.5))
    choice, x = Choice({"declared": candidate}), X.float()
    space = SearchSpace(choice)

    def run():
        torch.manual_seed(3)
        with space.running(Draw(torch.ones(1, 1, requires_grad=True), torch.tensor([[True]]))):
            return choice(x), torch.rand(1)

    first, second = run(), run()
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert candidate.last_norm.num_batches_tracked.item() == 2


# What cannot be weighted is refused by name


REFUSED = {
    "a distribution": (lambda y: torch.distributions.Normal(y, 1.0), "an object of type Normal"),
    "an array": (lambda y: y.detach().numpy(), "an object of type ndarray"),
    "an object in a tuple": (lambda y: (y, object()), "something with an object of type object"),
    "whole numbers": (lambda y: y.argmax(-1), r"whole numbers only \(torch.int64\)"),
    "truth values": (lambda y: y > 0, r"whole numbers only \(torch.bool\)"),
    "nothing": (lambda y: None, "no tensor but None"),
    "a text": (lambda y: "text", "no tensor but 'text'"),
}


@pytest.mark.parametrize("step", ["weight_step", "architecture_step", "joint_step"])
@pytest.mark.parametrize(("make_output", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("strategy", ["advantage", "darts"])
def test_an_output_that_cannot_be_weighted_is_refused_by_name(make_output, message, step, strategy):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Choice({"odd": returns(make_output)}, name="edge"))
    search = Search(model, strategy, steps=10)
    with pytest.raises(TypeError, match=rf"Candidate 'odd' of choice 'edge' returns {message}.*Return a tensor"):
        getattr(search, step)(lambda model: torch.as_tensor(model(X.float())).float().mean())


def test_whole_numbers_in_a_mixture_must_agree():
    masks = {"one": lambda y: (y, torch.tensor([1, 2])), "other": lambda y: (y, torch.tensor([2, 1]))}
    search = Search(Choice({name: returns(function) for name, function in masks.items()}, name="edge"), "darts")
    with pytest.raises(ValueError, match="choice 'edge' that run together return different whole numbers"):
        search.architecture_step(lambda model: model(X.float())[0].mean())

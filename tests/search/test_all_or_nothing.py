"""A step is taken completely or not at all: after bad losses, failing optimisers, and Ctrl-C at any line."""

import math
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import advnas
from advnas import Choice, NonFiniteLoss, Search, stores
from advnas.answers import rank_architectures
from advnas.records.interrupts import held_interrupts, interruptible
from advnas.strategies.darts import Darts

STEPS = ["weight_step", "architecture_step", "joint_step"]
X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Average(nn.Module):
    """Buffers of a user's own: a moving average and a counter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("runs", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        self.runs += 1
        return x + 0.01 * self.mean


def network():
    inner = Choice({"tanh": nn.Tanh(), "norm": nn.BatchNorm1d(4)}, name="inner")
    candidates = {
        "norm": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        "average": nn.Sequential(nn.Linear(4, 4), Average()),
        "instance": nn.Sequential(
            nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), inner
        ),
    }
    return nn.Sequential(
        nn.Linear(3, 4), Average(), Choice(candidates, name="outer"), nn.Dropout(0.2), nn.Linear(4, 1)
    )


def loss_of(model):
    return F.mse_loss(model(X), torch.ones(8, 1))


def make(strategy="advantage", store="resident", **options):
    torch.manual_seed(0)
    options = {"weight_optimizer": MOMENTUM, "steps": 100, **options}
    return Search(network(), strategy, weights=stores_of()[store], **options)


def stores_of():
    return {"resident": "resident", "host": stores.Host(), "disk": stores.Disk("10MB")}


def take(search, kind, loss=loss_of):
    if kind == "architecture_step":
        return search.architecture_step(loss, training_loss_of=loss)
    return getattr(search, kind)(loss)


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return type(value)(map(copied, value)) if isinstance(value, list | tuple) else value


def state(search):
    """All that a step may move, but the generator of the draws."""
    saved = copied(search.state())
    del saved["architecture"]["generator"]
    return saved


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def assert_at_rest(search):
    """Nothing that a step changes for its own time is left changed."""
    parameters = list(search.model.parameters())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in parameters)
    assert all(isinstance(parameter, nn.Parameter) for parameter in parameters)
    assert all(getattr(module, "track_running_stats", True) for module in search.model.modules())
    assert all(decision.choices[0].slot.route is None for decision in search.space.decisions)
    if not isinstance(search.weights.store, stores.Resident):
        assert not any(candidate.loaded for candidate in search.weights.store._candidates)


# Bad minibatches


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize(
    "loss", [lambda model: loss_of(model) * math.nan, lambda model: (loss_of(model) * 0).sqrt()]
)
@pytest.mark.parametrize("store", ["resident", "host", "disk"])
def test_a_bad_minibatch_leaves_no_trace_in_any_buffer(kind, loss, store):
    search = make(store=store)
    for _ in range(3):
        take(search, kind)
    before = state(search)
    with pytest.raises(NonFiniteLoss):
        take(search, kind, loss)
    assert equal(before, state(search))
    assert_at_rest(search)


@pytest.mark.parametrize("strategy", [*advnas.strategies.names(), Darts(second_order=True)], ids=str)
def test_an_architecture_step_moves_no_buffer_of_any_kind(strategy):
    search = make(strategy)
    before = {name: value.clone() for name, value in search.model.named_buffers()}
    for _ in range(6):
        take(search, "architecture_step")
    assert all(torch.equal(before[name], value) for name, value in search.model.named_buffers())
    search.weight_step(loss_of)
    assert search.model[1].runs.item() == 1


def test_ranking_and_planning_move_no_buffer_either():
    search = make()
    before = state(search)
    rank_architectures(search, [X] * 2, lambda model, x: F.mse_loss(model(x), torch.ones(8, 1)), count=4)
    search.plan(loss_of)
    assert equal(before, state(search))


# Optimisers that fail


class Breaks(torch.optim.SGD):
    """Raises half-way through its n-th step, or spoils a weight."""

    def __init__(self, parameters, error=None, after=2, **options):
        super().__init__(parameters, **{"lr": 0.1, "momentum": 0.9, **options})
        self.error, self.left = error, after

    def step(self, closure=None):
        self.left -= 1
        broken = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self.left < 0 and self.error is not None:
            for parameter in broken[: len(broken) // 2 + 1]:
                parameter.data.add_(1)
                self.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
            raise self.error
        super().step()
        if self.left < 0:
            broken[0].data.view(-1)[0] = math.inf


@pytest.mark.parametrize("store", ["resident", "host", "disk"])
@pytest.mark.parametrize(
    ("kind", "which"),
    [
        ("weight_step", "weight_optimizer"),
        ("architecture_step", "architecture_optimizer"),
        ("joint_step", "weight_optimizer"),
        ("joint_step", "architecture_optimizer"),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_an_optimiser_that_raises_has_moved_nothing(kind, which, error, store):
    search = make(store=store, **{which: partial(Breaks, error=error)})
    for _ in range(2):
        take(search, kind)
    before = state(search)
    with pytest.raises(type(error)):
        take(search, kind)
    assert equal(before, state(search))
    assert_at_rest(search)


@pytest.mark.parametrize(
    ("kind", "which", "what"),
    [
        ("weight_step", "weight_optimizer", "a weight"),
        ("joint_step", "weight_optimizer", "a weight"),
        ("joint_step", "architecture_optimizer", "theta"),
        ("architecture_step", "architecture_optimizer", "theta"),
    ],
)
def test_a_step_that_makes_a_weight_infinite_is_undone_and_told(kind, which, what):
    search = make(**{which: Breaks})
    for _ in range(2):
        take(search, kind)
    before = state(search)
    with pytest.raises(NonFiniteLoss, match=rf"optimiser made {what} infinite .* in .*before this step"):
        take(search, kind)
    assert equal(before, state(search))


def test_a_learning_rate_beyond_all_measure_is_noticed():
    search = make(weight_optimizer=partial(torch.optim.SGD, lr=3e38), weight_clip=None)
    before = state(search)
    with pytest.raises(NonFiniteLoss, match="made a weight infinite"):
        search.weight_step(lambda model: 100 * loss_of(model))
    assert equal(before, state(search))


# Ctrl-C


def test_an_interrupt_waits_for_the_end_of_the_block():
    passed = []

    def block():
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            passed.append(1)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_let_through_where_nothing_changes():
    passed = []

    def block():
        with held_interrupts():
            with interruptible():
                signal.raise_signal(signal.SIGINT)
                passed.append(1)
            passed.append(2)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert passed == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class CtrlC:
    """Sends Ctrl-C when the code of advnas, or of the loss, comes to its n-th line."""

    SOURCE = str(Path(advnas.__file__).parent)

    def __init__(self, after=math.inf):
        self.lines, self._after = 0, after

    def __call__(self, frame, event, argument):
        if event == "line":
            self.lines += 1
            if self.lines == self._after:
                signal.raise_signal(signal.SIGINT)
        return self

    def _global(self, frame, event, argument):
        return self if frame.f_code.co_filename.startswith((self.SOURCE, __file__)) else None

    def __enter__(self):
        sys.settrace(self._global)
        return self

    def __exit__(self, *error):
        sys.settrace(None)


def interrupt_everywhere(search, kind, points):
    """Interrupt a step at many of its lines, each time from the same state; count what was left half-done.

    Every other step is as good as any: the step is either not taken, or taken as it would have been without Ctrl-C.
    """
    take(search, kind)
    start = copied(search.state())

    def begin():
        search.restore(copied(start))

    begin()
    nothing = state(search)
    with CtrlC() as counted:
        take(search, kind)
    everything = state(search)
    outcomes = {"nothing": 0, "everything": 0}
    for point in sorted({1 + round(i * (counted.lines - 1) / (points - 1)) for i in range(points)}):
        begin()
        interrupted = CtrlC(point)
        with suppress(KeyboardInterrupt), interrupted:
            take(search, kind)
            assert interrupted.lines < point, "Ctrl-C was lost"  # a store may have less to do than the first time
        after = state(search)
        assert_at_rest(search)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        outcomes["nothing"] += equal(after, nothing)
        outcomes["everything"] += equal(after, everything)
        assert equal(after, nothing) or equal(after, everything), f"a mixture after line {point} of {counted.lines}"
    return outcomes


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize(("store", "strategy"), [("resident", "contrast"), ("disk", "advantage")])
def test_an_interrupted_step_is_taken_completely_or_not_at_all(kind, store, strategy):
    outcomes = interrupt_everywhere(make(strategy, store), kind, points=12)
    assert outcomes["nothing"] > 0
    assert outcomes["everything"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("store", ["resident", "host", "disk"])
@pytest.mark.parametrize("strategy", ["contrast", "advantage", "darts", Darts(second_order=True)], ids=str)
def test_interrupts_at_thousands_of_lines(kind, store, strategy):
    """36 kinds of step, 80 lines each."""
    outcomes = interrupt_everywhere(make(strategy, store), kind, points=80)
    assert sum(outcomes.values()) >= 80

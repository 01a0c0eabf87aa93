"""The conformance checks pass what is sound and name the rule that is broken: one mutant a rule."""

import dataclasses
import random
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from advnas import Choice, Distribution, Draw, Zero
from advnas.spaces.toy_regression import ToyRegression
from advnas.strategies import Phase, Strategy
from advnas.testing import check_space, check_strategy

# Strategies


@dataclass(frozen=True, kw_only=True)
class Sound(Strategy):
    """(r - b)(a - mu) with a baseline that is never updated; every mutant below changes one thing of it."""

    baseline: float = 10.0

    def init(self, logits, zeros, generator):
        return {"steps": torch.tensor(0)}

    def draw(self, logits, state, phase, progress, generator):
        return Draw.bare(Distribution(logits).sample(generator))

    def gradient(self, feedback, draw, logits, state):
        advantage = (self.baseline - feedback.loss)[..., None, None]
        return advantage * Distribution(logits).score(draw.weights), {"steps": state["steps"] + 1}


class NotFrozen:
    weight_operations = architecture_operations = 1
    init, draw, gradient, project = Sound.init, Sound.draw, Sound.gradient, Sound.project
    baseline = 10.0


class DeclaresNothing(Sound):
    weight_operations = 0


class DrawsPadding(Sound):
    def draw(self, logits, state, phase, progress, generator):
        return Draw.bare(Distribution(torch.zeros_like(logits)).sample(generator))


class RunsTwo(Sound):
    def draw(self, logits, state, phase, progress, generator):
        draw = super().draw(logits, state, phase, progress, generator)
        return Draw(draw.weights, draw.active | Distribution(logits).mode().bool())


class WeighsWhatItDoesNotRun(Sound):
    def draw(self, logits, state, phase, progress, generator):
        draw = super().draw(logits, state, phase, progress, generator)
        return Draw(Distribution(logits).probabilities.detach(), draw.active)


class ForgetsAnAxis(Sound):
    def gradient(self, feedback, draw, logits, state):
        gradient, state = super().gradient(feedback, draw, logits, state)
        return gradient.sum(-1), state


class MovesPadding(Sound):
    def gradient(self, feedback, draw, logits, state):
        gradient, state = super().gradient(feedback, draw, logits, state)
        return gradient + 1, state


class DividesByZero(Sound):
    def gradient(self, feedback, draw, logits, state):
        gradient, state = super().gradient(feedback, draw, logits, state)
        return gradient / (gradient * 0), state


class ProbesAllOperations(Sound):
    def gradient(self, feedback, draw, logits, state):
        shares = Distribution(logits.detach()).probabilities[None]
        feedback.probe(Draw(shares, shares > 0))
        return super().gradient(feedback, draw, logits, state)


class KnowsItsNeighbours(Sound):
    def gradient(self, feedback, draw, logits, state):
        return super().gradient(dataclasses.replace(feedback, loss=feedback.loss.mean()), draw, logits, state)


class KnowsOneSearchOnly(Sound):
    def gradient(self, feedback, draw, logits, state):
        return (self.baseline - feedback.loss.item()) * Distribution(logits).score(draw.weights), state


class KeepsNumbers(Sound):
    def init(self, logits, zeros, generator):
        return {"steps": 0}


class WritesIntoItsState(Sound):
    def gradient(self, feedback, draw, logits, state):
        gradient, _ = super().gradient(feedback, draw, logits, state)
        state["steps"] += 1
        return gradient, state


class RemembersInItself(Sound):
    def gradient(self, feedback, draw, logits, state):
        object.__setattr__(self, "baseline", self.baseline + 1)
        return super().gradient(feedback, draw, logits, state)


class RemembersElsewhere(Sound):
    seen: ClassVar[dict] = {}

    def gradient(self, feedback, draw, logits, state):
        """Knows its state again by its identity, so that one read from a file is a stranger."""
        gradient, after = super().gradient(feedback, draw, logits, state)
        known = not self.seen or id(state["steps"]) in self.seen
        self.seen[id(after["steps"])] = after["steps"]
        return gradient * (1 if known else 2), after


class UsesGlobalRandomness(Sound):
    def draw(self, logits, state, phase, progress, generator):
        torch.rand(1)
        return super().draw(logits, state, phase, progress, generator)


class IgnoresItsSeed(Sound):
    def draw(self, logits, state, phase, progress, generator):
        super().draw(logits, state, phase, progress, generator)
        return Draw.bare(Distribution(logits).mode())


class HasAWillOfItsOwn(Sound):
    def draw(self, logits, state, phase, progress, generator):
        if phase is Phase.WEIGHTS:
            generator.manual_seed(random.SystemRandom().randrange(2**31))
        return super().draw(logits, state, phase, progress, generator)


class MovesAllDecisions(Sound):
    def project(self, before, after, draw, state):
        return after * 0.99


class Descends(Sound):
    def gradient(self, feedback, draw, logits, state):
        gradient, state = super().gradient(feedback, draw, logits, state)
        return -gradient, state


class Rests(Sound):
    def gradient(self, feedback, draw, logits, state):
        return None, state


MUTANTS = {
    NotFrozen: "hyper-parameters are a frozen dataclass: write @dataclass",
    DeclaresNothing: "frozen dataclass: weight_operations must be a positive integer.* got 0",
    DrawsPadding: "real candidates.*: the draw runs padding",
    RunsTwo: "as many as declared: the draw runs .* operations per decision; declared are 1",
    WeighsWhatItDoesNotRun: "a weight to a candidate that it does not run",
    ForgetsAnAxis: r"the gradient has shape \(3,\), the logits have \(3, 4\)",
    MovesPadding: "the gradient is not 0 at padding",
    DividesByZero: "the gradient is not finite",
    ProbesAllOperations: "as many operations as the draw: a further pass executed .*, more than the draw",
    KnowsItsNeighbours: "side by side.*: other losses in one search changed the theta of its neighbours",
    KnowsOneSearchOnly: "searches side by side know nothing of each other: ",
    KeepsNumbers: "must be a dict of tensors, but 'steps' holds int",
    WritesIntoItsState: "gradient changed one of its arguments in place",
    RemembersInItself: "gradient changed the strategy itself",
    RemembersElsewhere: "survives a checkpoint: 1 steps after loading its state",
    UsesGlobalRandomness: "draw used torch's global random generator",
    IgnoresItsSeed: "the seed decides everything: two searches with different seeds drew the same",
    HasAWillOfItsOwn: "the seed decides everything: two searches with one seed",
    MovesAllDecisions: "not reached stays as it is: step .* moved the logits of a nested decision",
    Descends: "theta finds the better operation: after 200 steps",
    Rests: "theta finds the better operation: after 200 steps",
}


@pytest.mark.parametrize(
    "strategy", [Sound(), Sound, lambda: Sound(baseline=20.0)], ids=["object", "class", "factory"]
)
def test_a_sound_strategy_passes_however_it_is_handed_over(strategy):
    check_strategy(strategy)


@pytest.mark.parametrize(("mutant", "broken"), MUTANTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_strategy_is_told_which_rule_it_breaks(mutant, broken):
    with pytest.raises(AssertionError, match=rf"{mutant.__name__} breaks the rule that .*{broken}"):
        check_strategy(mutant)


class SaysThatItRests(Rests):
    learns = False


class LearnsInSecret(Sound):
    learns = False


def test_a_strategy_that_never_learns_must_say_so_and_must_keep_to_it():
    check_strategy(SaysThatItRests())
    with pytest.raises(AssertionError, match="theta moved, though it says learns = False"):
        check_strategy(LearnsInSecret())


@dataclass(frozen=True)
class NoSubclass:
    """All attributes and methods of a strategy, and not a Strategy."""

    baseline: float = 10.0

    weight_operations: ClassVar[int | None] = 1
    architecture_operations: ClassVar[int | None] = 1
    independent_draws: ClassVar[bool] = False
    answer: ClassVar[str] = "argmax"
    learns: ClassVar[bool] = True
    takes_architecture_steps: ClassVar[bool] = True
    architecture_every: ClassVar[int] = 1
    init, draw, gradient, project = Sound.init, Sound.draw, Sound.gradient, Sound.project
    architecture_passes = Sound.architecture_passes


def test_a_strategy_may_be_of_any_class():
    check_strategy(NoSubclass())


def test_a_strategy_whose_decisions_move_together_must_be_announced():
    check_strategy(MovesAllDecisions(), independent=False)


def test_the_checks_use_no_global_randomness():
    before = torch.get_rng_state()
    check_strategy(Sound())
    check_space(lambda: nn.Sequential(Choice({"a": nn.Linear(3, 3), "b": nn.Dropout()})), torch.ones(2, 3))
    assert torch.equal(before, torch.get_rng_state())


# Spaces


def cell():
    """Tied, nested, with BatchNorm, dropout, a stride and a zero operation."""

    def block(stride):
        norm = nn.Sequential(
            nn.ReLU(), nn.Conv2d(4, 4, 3, stride, 1), nn.BatchNorm2d(4, affine=False), nn.Dropout(0.2)
        )
        inner = Choice({"small": nn.Conv2d(4, 4, 1), "skip": nn.Identity()}, name="inner")
        nest = nn.Sequential(nn.AvgPool2d(stride), inner)
        return Choice({"zero": Zero(stride), "norm": norm, "nest": nest}, name=f"stride {stride}")

    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), block(1), block(1), block(2), nn.Flatten(), nn.Linear(64, 2)
    )


class Forwards(nn.Module):
    """Hands any arguments on to its choice."""

    def __init__(self, **candidates):
        super().__init__()
        self.choice = Choice(candidates)

    def forward(self, *args, **kwargs):
        return self.choice(*args, **kwargs)


class PlusMinus(nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def forward(self, x, *, y):
        return {"sum": x + self.sign * y, "both": (x, y)}


def test_a_sound_space_passes():
    check_space(cell, torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8))


def test_a_space_with_any_arguments_and_outputs_passes():
    check_space(
        lambda: Forwards(plus=PlusMinus(1), minus=PlusMinus(-1)), torch.ones(3), example_kwargs={"y": torch.ones(3)}
    )


def test_a_large_space_is_sampled():
    runs = []

    class Counted(nn.Linear):
        def forward(self, x):
            runs.append(self)
            return super().forward(x)

    models = []

    def large():
        models.append(nn.Sequential(*[Choice({str(k): Counted(2, 2) for k in range(3)}) for _ in range(20)]))
        return models[-1]

    check_space(large, torch.ones(2, 2), architectures=8)
    executed = {id(module) for module in runs}
    assert all(id(module) in executed for module in models[0].modules() if isinstance(module, Counted))


def test_candidates_deep_inside_others_are_covered_by_a_sample():
    """A layer that only runs in one of many corners still has its shapes compared."""

    def make():
        wrong = Choice({"a": nn.Linear(2, 2), "b": nn.Linear(2, 1)}, name="c")
        deep = Choice({"a": nn.Identity(), "b": nn.Identity(), "deep": nn.Sequential(wrong)}, name="b")
        outer = Choice({"a": nn.Identity(), "b": nn.Identity(), "deep": nn.Sequential(deep)}, name="a")
        return nn.Sequential(outer, *[Choice({"a": nn.Identity(), "b": nn.Identity()}) for _ in range(10)])

    with pytest.raises(AssertionError, match=r"choice 'c' 'a' returned \(3, 2\), 'b' returned \(3, 1\)"):
        check_space(make, torch.ones(3, 2), architectures=4)


def test_a_space_of_the_package_passes():
    check_space(
        lambda: ToyRegression(3, 2, generator=torch.Generator().manual_seed(0)),
        torch.linspace(-1, 1, 2 * 13 * 13).reshape(2, 1, 13, 13),
    )


class Logarithm(nn.Module):
    def forward(self, x):
        return x.log()


class Peeks(Forwards):
    """Looks inside its Choice, which a derived module has no more."""

    def forward(self, x):
        return self.choice(x) * len(self.choice.candidates)


class Detaches(Forwards):
    def forward(self, x):
        return self.choice(x).detach()


class Lies(nn.Module):
    """Names a BatchNorm whose scale is not the scale of the output."""

    def __init__(self):
        super().__init__()
        self.last_norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.last_norm(x) + x


class Shortcut(nn.Module):
    """Says that nobody but its second choice reads what the first one returns, and reads it as well."""

    def __init__(self):
        super().__init__()
        self.first = Choice({"linear": nn.Linear(2, 2)}, name="first", edge=("in", "node"))
        self.second = Choice(
            {"linear": nn.Linear(2, 2), "skip": nn.Identity()}, name="second", edge=("node", "out")
        )

    def forward(self, x):
        node = self.first(x)
        return node + self.second(node)


class Borrows(nn.Module):
    """Uses the weights of a candidate that it does not hold."""

    def __init__(self, lender):
        super().__init__()
        self.lender = (lender,)

    def forward(self, x):
        return self.lender[0](x)


class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = torch.rand(2)

    def forward(self, x):
        return x + self.noise


class Fickle:
    """Makes another space each time it is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Forwards(**{f"operation {number}": nn.Identity() for number in range(self.calls)})


def lending():
    linear = nn.Linear(2, 2)
    return Forwards(own=linear, borrowed=Borrows(linear))


BROKEN_SPACES = {
    "no choice": (lambda: nn.Linear(2, 2), "is no search space: Linear has no Choice"),
    "tied unlike": (
        lambda: nn.Sequential(Choice({"a": nn.Identity()}, name="edge"), Choice({"b": nn.Identity()}, name="edge")),
        "is no search space: Choices with one name are one decision",
    ),
    "fickle": (Fickle(), "every call of the factory makes the same space"),
    "shapes": (
        lambda: Forwards(two=nn.Linear(2, 2), one=nn.Linear(2, 1)),
        r"return the same shape: .*'two' returned \(3, 2\), 'one' returned \(3, 1\)",
    ),
    "not finite": (lambda: Forwards(log=Logarithm()), "every architecture can be run: .* not finite"),
    "peeks": (lambda: Peeks(a=nn.Identity()), "every architecture can be derived: "),
    "lies": (lambda: Forwards(lie=Lies()), "a gate scales its operation.*: .* declares a last_norm"),
    "shortcut": (Shortcut, "nodes are the sums .*: second should read just the sum of what first return"),
    "detached": (lambda: Detaches(a=nn.Linear(2, 2)), "a gate .* finite slope: .* is it detached"),
    "borrows": (lending, r"trains its own weights only: .*uses choice\.candidates\.0\.weight"),
    "unregistered": (lambda: Forwards(noise=Unregistered()), "the weights survive a state_dict: a second network"),
}


@pytest.mark.parametrize(("factory", "broken"), BROKEN_SPACES.values(), ids=BROKEN_SPACES)
def test_a_broken_space_is_told_which_rule_it_breaks(factory, broken):
    with pytest.raises(AssertionError, match=broken):
        check_space(factory, torch.tensor([[1.0, -1.0], [-2.0, 2.0], [3.0, 1.0]]))

"""When theta learns, how long a search is, and how learning rates fall."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from advnas.arguments import check_count
from advnas.search.step import LossOf, Step
from advnas.task import length_of

if TYPE_CHECKING:
    from advnas.search.search import Search

Annealing = Callable[[float], float]


def cosine(progress: float) -> float:
    """Anneal a learning rate from its initial value to 0."""
    return (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def constant(progress: float) -> float:
    """Leave a learning rate as it is."""
    return 1.0


class Rates:
    """The learning rates of an optimiser: their initial values times a factor."""

    def __init__(self, optimizer: Optimizer, annealing: Annealing) -> None:
        self._optimizer, self._annealing = optimizer, annealing
        self.initial = [group["lr"] for group in optimizer.param_groups]

    def factor(self, progress: float | None) -> float | None:
        """Return the factor for a share of the search, 1 where its length is not known.

        A scheduler of torch leaves `initial_lr` in the groups of its optimiser; then the rates are the scheduler's,
        and the factor is None.
        """
        if any("initial_lr" in group for group in self._optimizer.param_groups):
            return None
        return 1.0 if progress is None else float(self._annealing(progress))

    def anneal(self, progress: float | None) -> None:
        """Set the rates for a share of the search, unless they are a scheduler's; see `factor`."""
        factor = self.factor(progress)
        if factor is None:
            return
        for group, rate in zip(self._optimizer.param_groups, self.initial, strict=True):
            group["lr"] = rate * factor


TRAVEL = 30.0
"""How far theta may travel by default: learning rate x architecture steps; see docs/results/theta_rate.md."""
LARGEST_RATE, USUAL_RATE = 0.5, 0.02  # of very short searches, and of those whose length is not known


def fitted_adam(parameters: list[nn.Parameter]) -> Optimizer:
    """Make the default optimiser of theta: Adam, whose rate is fitted to the length of the search.

        rate = TRAVEL / architecture steps

    Adam moves a logit by about its rate in every step, however large the gradient is, so that this is what a search
    can decide. The rate is USUAL_RATE where the length is not known.
    """
    return torch.optim.Adam(parameters, lr=USUAL_RATE, betas=(0.5, 0.999), fused=True)


def fitted_rate(steps: int | None) -> float:
    """Return the rate of `fitted_adam` for a number of architecture steps, None where nobody knows it."""
    return USUAL_RATE if steps is None else min(TRAVEL / steps, LARGEST_RATE)


@dataclass
class Progress:
    """How many steps a search has taken, and of how many.

    steps: weight steps of the whole search; None where nobody knows. warmup: in how many of the first ones theta
    stays fixed. every: how many weight steps there are for one architecture step.
    """

    weight_steps: int = 0
    architecture_steps: int = 0
    steps: int | None = None
    warmup: int = 0
    every: int = 1

    def set_length(self, steps: int | None, warmup: int = 0) -> None:
        """Say how many weight steps there will be, and in how many of the first ones theta stays fixed."""
        check_count("warmup", warmup, least=0)
        if steps is not None and check_count("steps", steps) <= warmup:
            raise ValueError(f"warmup must leave steps for theta: it is {warmup} of {steps}.")
        self.steps, self.warmup = steps, warmup

    @property
    def theta_steps(self) -> int | None:
        """How many architecture steps the whole search has."""
        return None if self.steps is None else max((self.steps - self.warmup) // self.every, 1)

    def count_joint_step(self) -> None:
        """Count one step of each kind."""
        self.weight_steps, self.architecture_steps = self.weight_steps + 1, self.architecture_steps + 1

    @property
    def in_warmup(self) -> bool:
        """Whether theta is still fixed."""
        return self.weight_steps < self.warmup

    @property
    def is_over(self) -> bool:
        """Whether all weight steps were taken, as far as anybody said how many there are."""
        return self.steps is not None and self.weight_steps >= self.steps

    @property
    def theta_is_due(self) -> bool:
        """Whether the turn that begins now has an architecture step: the last one of every `every` turns has."""
        return not self.in_warmup and (self.weight_steps - self.warmup + 1) % self.every == 0

    @property
    def of_weights(self) -> float | None:
        """The share of the weight steps already taken."""
        return None if self.steps is None else min(1.0, self.weight_steps / self.steps)

    @property
    def of_theta(self) -> float | None:
        """The share of the architecture steps already taken."""
        if self.steps is None:
            return None
        return min(1.0, self.architecture_steps * self.every / (self.steps - self.warmup))


def turn(search: "Search", training: LossOf, validation: Callable[[], LossOf]) -> Iterator[Step]:
    """Take one turn of Algorithm 1's loop; yield each step before taking the next.

    Args:
        search: whose schedule, warm-up and strategy decide which steps that are.
        training: the loss on the next training minibatch.
        validation: makes the loss on the next validation minibatch; called only when theta takes a step.
    """
    search.progress.every = search.strategy.architecture_every
    learns = search.progress.theta_is_due and search.strategy.takes_architecture_steps
    if search.schedule == "joint" and learns:
        yield search.joint_step(training)
        return
    yield search.weight_step(training)
    if learns:
        yield search.architecture_step(validation(), training_loss_of=training)


def check_makes_loss(given: Callable[[], LossOf]) -> Callable[[], LossOf]:
    """Return what makes the loss for theta; TypeError if it must be given arguments, as a loss itself must."""
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        raise TypeError(
            "The second argument of turn makes the loss on the next validation minibatch, and is called without "
            f"arguments, which it does not allow: {error}. Write search.turn(training_loss, lambda: "
            "validation_loss)."
        ) from None
    except ValueError:  # nobody knows what it takes
        pass
    return given


@dataclass(frozen=True)
class Length:
    """How long a search is, counted in turns of Algorithm 1's loop.

    per_epoch: turns in one pass over the training data. epochs: passes of the whole search. warmup: passes at its
    beginning with theta fixed. records: how many per pass, each with a checkpoint and the last at its end; one per
    turn where a pass has fewer turns.
    """

    per_epoch: int
    epochs: int
    warmup: int = 0
    records: int = 1

    def __post_init__(self) -> None:
        for name in ("per_epoch", "epochs", "records"):
            check_count(name, getattr(self, name))
        if check_count("warmup", self.warmup, least=0) >= self.epochs:
            raise ValueError(f"warmup must leave epochs for theta: it is {self.warmup} of {self.epochs}.")

    @property
    def turns(self) -> int:
        """Of the whole search."""
        return self.epochs * self.per_epoch

    @property
    def warmup_turns(self) -> int:
        """In how many of the first ones theta stays fixed."""
        return self.warmup * self.per_epoch

    @property
    def record_every(self) -> Fraction:
        """Turns between two records; no whole number where the records do not divide the pass."""
        return max(Fraction(1), Fraction(self.per_epoch, self.records))

    def __str__(self) -> str:
        return f"{self.turns:,}, {self.per_epoch:,} per epoch; theta fixed for the first {self.warmup_turns:,}"


def batches_in(batches: Iterable[Any], *, processes: int = 1) -> int:
    """Count the minibatches that one pass over the data has for each of the processes that share them."""
    length = length_of(batches)
    if not length:
        raise ValueError(
            "Search.run must know the number of training minibatches, got "
            f"{type(batches).__name__} without a length or with none. Pass a list or a DataLoader, or drive "
            "weight_step and architecture_step yourself."
        )
    if length < processes:
        raise ValueError(
            f"A pass over the training data has {length} minibatches, which is not one for each of "
            f"{processes} processes. Make the minibatches smaller."
        )
    return length // processes

"""What a step is given, what it reports, and how it fails."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from advnas.architecture import Architecture

LossOf = Callable[[nn.Module], Tensor]
OptimizerOf = Callable[[list[nn.Parameter]], Optimizer]
Draws = Literal["shared", "independent"]

UNTOUCHED = "Theta and the weights are as they were before this step; a lower learning rate often helps."


class NonFiniteLoss(ArithmeticError):
    """The loss or its gradient is infinite or not a number; theta and the weights are as before the step."""


class SearchStopped(KeyboardInterrupt):
    """A signal asked the search to stop; it is saved in its folder."""


class NonFinite(ArithmeticError):
    """A number that must be finite is not; raised where it is not known yet which step it was."""


def check_finite(what: str, value: float) -> None:
    """Raise NonFinite if a number is infinite or not a number."""
    if not math.isfinite(value):
        raise NonFinite(f"{what} {value}")


@dataclass(frozen=True)
class Step:
    """What one step did; one line of the journal.

    number: counts the steps of its phase from 1. entropy: mean over the decisions, in nats.
    advantages: dr/dw_i at every reached decision, summed over its weighted operations; empty without gates.
    contrasts: at every reached decision, how much higher the reward would be with each rival, to first order.
    In a group of processes the loss is the mean over them; where each has a draw of its own, architecture,
    advantages and contrasts are those of this process.
    limits: by the name of a cost its expected amount after the step, the limit and its multiplier.
    """

    phase: str
    number: int
    loss: float
    entropy: float
    architecture: dict[str, str] | None
    advantages: dict[str, float]
    gradient_norm: float | None
    contrasts: dict[str, dict[str, float]] = field(default_factory=dict)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessBest:
    """The drawn architecture with the lowest minibatch loss so far; it may owe that to an easy minibatch."""

    architecture: Architecture
    loss: float

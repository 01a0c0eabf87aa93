"""What a step is given, what it reports, and how it fails."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from advnas.architecture import Architecture

LossOf = Callable[[nn.Module], Tensor]
OptimizerOf = Callable[[list[nn.Parameter]], Optimizer]
Draws = Literal["shared", "independent"]

UNTOUCHED = "Theta and the weights are as they were before this step; a lower learning rate often helps."


class Accumulated:
    """The mean of several losses, as one loss whose gradient needs the memory of one of them at a time.

    The steps of a search compute a part forwards and backwards before the next one begins. Whoever else calls it
    gets the mean.

    Args:
        parts: the losses, such as those on several small minibatches.
    """

    def __init__(self, *parts: LossOf) -> None:
        if not parts:
            raise ValueError("Accumulated needs at least one loss, got none.")
        self.parts = parts

    def __call__(self, model: nn.Module) -> Tensor:
        """Compute the mean, with the graphs of all parts."""
        return torch.stack([part(model) for part in self.parts]).mean()


def check_loss(loss: object) -> Tensor:
    """Return a loss of one number, in 32 bits at least: autocast may leave it in half precision.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError(
            f"The loss must be a tensor with one number, got {getattr(loss, 'shape', type(loss).__name__)}. "
            "Return for example F.cross_entropy(model(x), y), or take .mean()."
        )
    return loss if loss.dtype.itemsize > 2 else loss.float()


class NonFiniteLoss(FloatingPointError):
    """The loss, its gradient or what an optimiser made of it is infinite or not a number.

    Theta, weights, buffers and both optimisers are as before the step.
    """


class SearchStopped(KeyboardInterrupt):
    """A signal asked the search to stop; it is saved in its folder."""


class NonFinite(ArithmeticError):
    """A number that must be finite is not; raised where it is not known yet which step it was."""


def make_optimizer(optimizer_of: OptimizerOf, parameters: list[nn.Parameter]) -> Optimizer:
    """Make an optimiser that takes a step from gradients that are there.

    Raises:
        ValueError: it computes the loss itself, several times per step.
    """
    return refuse_closures(optimizer_of(parameters))


def refuse_closures(optimizer: Optimizer) -> Optimizer:
    """Return an optimiser that takes a step from gradients that are there; ValueError for any other."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"{type(optimizer).__name__} computes the loss several times per step, and here each step has one loss "
            "and its gradient. Write for example partial(torch.optim.SGD, lr=0.1)."
        )
    return optimizer


def clip_gradient(parameters: list[nn.Parameter], most: float | None) -> Tensor:
    """Scale the gradients of parameters to a largest norm, or to any; return their norm before.

    Raises:
        ValueError: one of them is sparse.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    try:
        norm = nn.utils.get_total_norm(gradients)
        if most is not None:
            if norm.isinf():  # where squares overflow, the norm itself need not
                norm = nn.utils.get_total_norm([gradient.double() for gradient in gradients]).to(norm.dtype)
            nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm
    except NotImplementedError:
        sparse = [parameter for parameter in parameters if parameter.grad is not None and parameter.grad.is_sparse]
        if not sparse:
            raise
        raise ValueError(
            f"The gradient of a weight of shape {list(sparse[0].shape)} is sparse, which cannot be clipped or "
            "averaged. Write nn.Embedding(..., sparse=False)."
        ) from None


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

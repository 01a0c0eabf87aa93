"""A task: data, and the loss of a model on a minibatch of it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """What a search is about. Any iterables of minibatches will do; a DataLoader is one.

    training: minibatches D for the weights, iterated anew every epoch.
    validation: minibatches V for theta, iterated again and again.
    loss: the scalar loss of a model on a minibatch.
    test: minibatches that nothing is learnt from, to judge what was found; the validation data if not given.
    metric: what answers are judged by besides the loss, such as the accuracy on a minibatch; the more the better.
        Its name in tables and reports is that of the function.
    examples: how many examples or tokens the loss of one minibatch is the mean of; strategies that need the number
        are told it.
    """

    training: Iterable[Any]
    validation: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    test: Iterable[Any] | None = None
    metric: Callable[[nn.Module, Any], float] | None = None
    examples: int | None = None


def mean_over(model: nn.Module, batches: Iterable[Any], of: Callable[[nn.Module, Any], Any]) -> float:
    """The mean over minibatches of a number such as the loss, for a model in the mode it is in."""
    with torch.no_grad():
        numbers = [float(of(model, batch)) for batch in batches]
    if not numbers:
        raise ValueError(
            "There are no minibatches to judge a model by: the data are empty, or an iterator that was read before."
        )
    return math.fsum(numbers) / len(numbers)

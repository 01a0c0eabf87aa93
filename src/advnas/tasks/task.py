"""A task: data, and the loss of a model on a minibatch of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """What a search is about. Any iterables of minibatches will do; a DataLoader is one.

    training: minibatches D for the weights, iterated anew every epoch.
    validation: minibatches V for theta, iterated again and again.
    loss: the scalar loss of a model on a minibatch.
    """

    training: Iterable[Any]
    validation: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]

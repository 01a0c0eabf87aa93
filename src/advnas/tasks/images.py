"""Minibatches of labelled images, and the loss and accuracy of a model on them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Minibatches of images and labels, in a new order every time; the last, partial one is left out.

    Order and preparation draw from torch's global generator, which `Replay` seeds for every minibatch.
    """

    images: Tensor
    labels: Tensor
    batch: int
    prepare: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= len(self.labels):
            raise ValueError(f"A minibatch must have 1 to {len(self.labels)} images here, got {self.batch}.")

    def __len__(self) -> int:
        return len(self.labels) // self.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels))
        for number in range(len(self)):
            rows = order[number * self.batch : (number + 1) * self.batch]
            images = self.images[rows]
            yield (images if self.prepare is None else self.prepare(images)), self.labels[rows]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of a model on images and labels."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def accuracy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    """Return the percentage of the images that a model classifies correctly."""
    images, labels = batch
    return 100 * float((model(images).argmax(1) == labels).float().mean())

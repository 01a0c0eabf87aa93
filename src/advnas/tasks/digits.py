"""Handwritten digits that come with the package, so that a search needs no download.

1,797 grey images of 8 x 8 pixels: the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak (1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0. digits.npz
has them as they are there, pixels from 0 to 16, in the order in which scikit-learn ships them.
"""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from advnas.randomness import generator
from advnas.task import Task
from advnas.tasks.images import Shuffled, accuracy, cross_entropy

_BRIGHTEST = 16
_FOR_WEIGHTS, _FOR_THETA = 700, 500  # of the 1,797; the others are for the test


def build(*, batch: int = 32) -> Task:
    """Build the task: 700 images for the weights, 500 for theta, 597 to judge by.

    Args:
        batch: of how many images a minibatch is.
    """
    known, end = read(), _FOR_WEIGHTS + _FOR_THETA
    parts = (slice(0, _FOR_WEIGHTS), slice(_FOR_WEIGHTS, end), slice(end, None))
    training, validation, test = ((known.images[part], known.labels[part]) for part in parts)
    return Task(
        Shuffled(*training, batch),
        Shuffled(*validation, batch),
        cross_entropy,
        test=[test],
        metric=accuracy,
        examples=batch,
    )


@dataclass(frozen=True, eq=False)
class Digits:
    """images: float32 [n, 1, 8, 8] from 0 to 1; labels: int64 [n]."""

    images: Tensor
    labels: Tensor


def read() -> Digits:
    """All of them, in an order that mixes the writers: the file has one after the other."""
    with files("advnas.tasks").joinpath("digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as data:
        images, labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])
    order = torch.randperm(len(labels), generator=generator(len(labels)))
    return Digits(images[order].float().div(_BRIGHTEST).unsqueeze(1), labels[order].long())

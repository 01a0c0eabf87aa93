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

_BRIGHTEST = 16


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

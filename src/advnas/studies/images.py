"""Small convolutional networks for small images: what `advnas search` does without a network of one's own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas import strategies
from advnas.parallel.launch import current
from advnas.randomness import generator, seed_of
from advnas.search import Search
from advnas.spaces.convolution_cell import ConvolutionCellNetwork, SmallCellNetwork
from advnas.spaces.darts import DartsNetwork
from advnas.spaces.mobile import SMALL_IMAGES, MobileNetwork
from advnas.task import Task
from advnas.tasks import cifar10
from advnas.tasks import digits as handwritten
from advnas.tasks.data_folder import data_folder
from advnas.tasks.image_stream import augment, normalise

_DIGITS_FOR_WEIGHTS, _DIGITS_FOR_THETA = 700, 500  # of the 1,797; the rest is for the test
_PART = 5  # sets the choice of CIFAR-10's images apart from other purposes


def digits(
    strategy: str,
    seed: int,
    *,
    space: str = "small_cells",
    channels: int = 8,
    cells: int = 1,
    zero: bool = True,
    batch: int = 32,
    weight_rate: float = 0.1,
    theta_rate: float = 0.05,
) -> tuple[Search, Task]:
    """A cell for the handwritten digits that come with the package."""
    known, end = handwritten.read(), _DIGITS_FOR_WEIGHTS + _DIGITS_FOR_THETA
    parts = (slice(0, _DIGITS_FOR_WEIGHTS), slice(_DIGITS_FOR_WEIGHTS, end), slice(end, None))
    training, validation, test = ((known.images[part], known.labels[part]) for part in parts)
    task = Task(
        Shuffled(*training, batch),
        Shuffled(*validation, batch),
        loss,
        test=[test],
        metric=accuracy,
    )
    network = _network(space, seed, inputs=1, channels=channels, cells=cells, zero=zero)
    return _search(network, strategy, seed, batch, weight_rate, theta_rate), task


def cifar10_images(
    strategy: str,
    seed: int,
    *,
    space: str = "nasbench201",
    channels: int = 8,
    cells: int = 1,
    zero: bool = True,
    images: int = 6_400,
    batch: int = 64,
    weight_rate: float = 0.1,
    theta_rate: float = 0.05,
) -> tuple[Search, Task]:
    """A cell for CIFAR-10. images: how many for the weights, and as many for theta."""
    folder = data_folder()
    known, test = _cifar10(folder, "train"), _cifar10(folder, "test")
    training, validation = (
        half[torch.randperm(len(half), generator=generator(_PART, number))[:images]]
        for number, half in enumerate(cifar10.halves(folder))
    )
    batches = [(normalise(test.pixels[i : i + 500]), test.labels[i : i + 500]) for i in range(0, len(test), 500)]
    task = Task(
        Shuffled(known.pixels[training], known.labels[training], batch, _augmented),
        Shuffled(known.pixels[validation], known.labels[validation], batch, _augmented),
        loss,
        test=batches,
        metric=accuracy,
    )
    network = _network(space, seed, inputs=3, channels=channels, cells=cells, zero=zero)
    return _search(network, strategy, seed, batch, weight_rate, theta_rate), task


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Minibatches of images and labels, in a new order every time; the last, partial one is left out.

    Order and preparation draw from torch's global generator, which whoever replays the data takes charge of.
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


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def accuracy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    """Percent of the images that a model knows."""
    images, labels = batch
    return 100 * float((model(images).argmax(1) == labels).float().mean())


def _augmented(pixels: Tensor) -> Tensor:
    return normalise(augment(pixels, torch.default_generator))


@lru_cache(maxsize=2)
def _cifar10(folder: Path, part: str) -> cifar10.Images:
    return cifar10.read(folder, part)  # type: ignore[arg-type]


def _network(space: str, seed: int, *, inputs: int, channels: int, cells: int, zero: bool) -> nn.Module:
    if space not in _NETWORKS:
        raise ValueError(f"The space for images must be one of {', '.join(_NETWORKS)}, got {space!r}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed))
        return _NETWORKS[space](inputs, channels, cells, zero)


def _nasbench201(inputs: int, channels: int, cells: int, zero: bool) -> nn.Module:
    return ConvolutionCellNetwork(inputs=inputs, channels=channels, cells=cells, zero=zero, affine=True)


def _small_cells(inputs: int, channels: int, cells: int, zero: bool) -> nn.Module:
    """cells: always three."""
    return SmallCellNetwork(inputs=inputs, channels=channels, zero=zero, affine=True)


def _darts(inputs: int, channels: int, cells: int, zero: bool) -> nn.Module:
    """cells: between the two that reduce, and before and after them."""
    return DartsNetwork(inputs=inputs, channels=channels, cells=3 * cells + 2, zero=zero, affine=True)


def _mobile(inputs: int, channels: int, cells: int, zero: bool) -> nn.Module:
    """channels: those of the first bottleneck, in units of 16; the layers are always the same."""
    return MobileNetwork(
        inputs=inputs,
        width=channels / 16,
        classes=10,
        stem_stride=1,
        stages=SMALL_IMAGES,
        zero=zero,
        affine=True,
    )


_NETWORKS = {"small_cells": _small_cells, "nasbench201": _nasbench201, "darts": _darts, "mobile": _mobile}


def _search(
    network: nn.Module, strategy: str, seed: int, batch: int, weight_rate: float, theta_rate: float
) -> Search:
    examples = batch * current().size  # that a loss is the mean of
    told: dict[str, dict[str, Any]] = {"parsec": {"examples": examples}, "enas": {"learning_rate": theta_rate / 10}}
    return Search(
        network,
        strategies.get(strategy, **told.get(strategy, {})),
        weight_optimizer=partial(torch.optim.SGD, lr=weight_rate, momentum=0.9, nesterov=True, weight_decay=5e-4),
        architecture_optimizer=partial(torch.optim.Adam, lr=theta_rate, betas=(0.5, 0.999), fused=True),
        seed=seed,
    )

"""Studies of searches on the two halves of CIFAR-10 that a table of real trainings judges."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from advnas import strategies
from advnas.arguments import check_count
from advnas.randomness import seed_of, seeded
from advnas.search import Length, LossOf, Search, TwoStreams
from advnas.strategies import Answer, Strategy
from advnas.studies.study import Taken, answer_of
from advnas.tasks import cifar10
from advnas.tasks.image_stream import Images, ImageStream
from advnas.tasks.images import cross_entropy

_PURPOSES = (1, 2)  # of the random streams of a seed: the order of each half


@dataclass(frozen=True, kw_only=True)
class ImageSearchSettings:
    """How a network is searched on the two halves of CIFAR-10. The defaults are the paper's (appendix).

    images: how many of each half, for the weights and for theta. warmup: epochs with theta fixed; each epoch after
    it alternates weight and theta steps. clip: largest norm of the gradients of the weights and of theta.
    controller_rate: of ENAS's LSTM, which takes theta's place there. records: how many per epoch, each with a
    checkpoint. answer: which architecture is the result of strategies that learn; as they say where None.
    """

    images: int = 25_000
    batch: int = 64
    epochs: int = 100
    warmup: int = 50
    weight_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    theta_rate: float = 3e-4
    theta_betas: tuple[float, float] = (0.5, 0.999)
    theta_decay: float = 3e-3
    controller_rate: float = 3.5e-4
    clip: float = 1.0
    records: int = 1
    answer: Answer | None = None

    def __post_init__(self) -> None:
        for name in ("images", "batch", "epochs", "records"):
            check_count(name, getattr(self, name))
        check_count("warmup", self.warmup, least=0)
        if self.batch > self.images:
            raise ValueError(f"A minibatch of {self.batch} needs as many images, got images={self.images}.")

    @property
    def length(self) -> Length:
        """How long a search is; the last, partial minibatch of an epoch is left out."""
        return Length(self.images // self.batch, self.epochs, self.warmup, self.records)

    def strategy(self, name: str) -> Strategy:
        """Build a strategy and tell it what it wants to know about these searches."""
        return strategies.for_task(name, examples=self.batch, controller_rate=self.controller_rate)

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""
        return {
            "turns": str(self.length),
            "warm-up": "one for all sparse strategies of a seed",
            "then in turn": "a step of the weights (SGD, Nesterov) and one of theta (Adam), half of the data each",
            "learning rates": "annealed to 0 along a cosine",
        }


@dataclass(frozen=True)
class ImageSearch(ABC):
    """A study that searches on the two halves of CIFAR-10, and looks answers up in a table.

    data_folder: where the images lie. A subclass says what it is called, which table judges it, and what network is
        searched on which images.
    """

    settings: ImageSearchSettings
    data_folder: Path

    name: ClassVar[str]
    title: ClassVar[str]
    table: ClassVar[str]

    @abstractmethod
    def make_network(self) -> nn.Module:
        """Build the network, with random weights."""

    @abstractmethod
    def read_images(self) -> Images:
        """Read all training images."""

    @abstractmethod
    def procedure(self) -> dict[str, str]:
        """Say in words what the settings do not."""

    @property
    def length(self) -> Length:
        """How long a search is."""
        return self.settings.length

    def check(self, strategy: str, seed: int) -> None:
        """The images must be there and be the right ones."""
        cifar10.parts(self.data_folder, self.settings.images)

    def begin(self, strategy: str, seed: int) -> tuple[Search, TwoStreams]:
        """A search at its beginning, and both halves of the data."""
        return self.make_search(strategy, seed), self.make_data(seed)

    def answer_of(self, strategy: str) -> Answer:
        """As the settings ask for, or as the strategy says."""
        return answer_of(strategy, self.settings.answer)

    def make_search(self, strategy: str | Strategy, seed: int) -> Search:
        """A search of the network, in channels_last, with weights that depend on the seed alone."""
        settings, length = self.settings, self.length
        with seeded(seed_of(seed)):
            network = self.make_network()
        return Search(
            network.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            settings.strategy(strategy) if isinstance(strategy, str) else strategy,
            steps=length.turns,
            warmup=length.warmup_turns,
            weight_optimizer=partial(
                torch.optim.SGD,
                lr=settings.weight_rate,
                momentum=settings.momentum,
                nesterov=True,
                weight_decay=settings.weight_decay,
            ),
            architecture_optimizer=partial(
                torch.optim.Adam,
                lr=settings.theta_rate,
                betas=settings.theta_betas,
                weight_decay=settings.theta_decay,
                fused=True,
            ),
            weight_clip=settings.clip,
            architecture_clip=settings.clip,
            seed=seed,
        )

    def make_data(self, seed: int) -> TwoStreams:
        """Both halves of the training images, in an order and with an augmentation of the seed's own."""
        images, settings = self.read_images(), self.settings
        training, validation = (
            ImageStream(images, half, batch=settings.batch, seed=seed_of(seed, purpose))
            for half, purpose in zip(cifar10.parts(self.data_folder, settings.images), _PURPOSES, strict=True)
        )
        return TwoStreams(partial(loss_at, training), partial(loss_at, validation))

    def evaluate(self, answer: Taken, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """Nothing to do: the table knows every network."""
        return {}


def loss_at(stream: ImageStream, step: int) -> LossOf:
    """The loss on minibatch number `step` of a stream."""
    batch = stream.batch(step)
    return lambda model: cross_entropy(model, batch)

"""The NAS-Bench-201 cell on CIFAR-10: the paper's main study."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from advnas import strategies
from advnas.arguments import check_count
from advnas.randomness import seed_of, seeded
from advnas.search import Length, LossOf, Search, TwoStreams
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.strategies import Answer
from advnas.studies.study import Comparison
from advnas.tasks import cifar10
from advnas.tasks.image_stream import ImageStream
from advnas.tasks.images import cross_entropy

_PURPOSES = (1, 2)  # of the random streams of a seed: the order of each half


@dataclass(frozen=True)
class Cifar10Settings:
    """Everything that decides the outcome. The defaults are the paper's (appendix).

    zero: whether `none` is among the operations. images: how many of each half, for the weights and for theta.
    warmup: epochs with theta fixed; each epoch after it alternates weight and theta steps. clip: largest norm
    of the gradients of the weights and of theta. controller_rate: of ENAS's LSTM, which takes theta's place there.
    records: how many an epoch, each with a checkpoint.
    """

    zero: bool = False
    channels: int = 16
    cells: int = 5
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

    def __post_init__(self) -> None:
        for name in ("channels", "cells", "images", "batch", "epochs", "records"):
            check_count(name, getattr(self, name))
        check_count("warmup", self.warmup, least=0)
        if self.batch > self.images:
            raise ValueError(f"A minibatch of {self.batch} needs as many images, got images={self.images}.")


# The smaller studies keep the paper's alternation, half of it warm-up. They have far fewer steps, so theta needs a
# larger learning rate to settle at all; docs/results/cifar10.md says how it was chosen.
_LAPTOP = Cifar10Settings(
    channels=8, cells=1, images=6_400, epochs=24, warmup=12, theta_rate=0.05, controller_rate=3.5e-3, records=2
)
_QUICK = replace(_LAPTOP, channels=4, images=256, epochs=4, warmup=2)
PRESETS = {"quick": _QUICK, "laptop": _LAPTOP, "paper": Cifar10Settings()}
SEEDS = {"quick": 1, "laptop": 3, "paper": 3}
STRATEGIES = ("reinforce", "enas", "parsec", "proxyless", "gdas", "advantage", "random")


@dataclass(frozen=True)
class Cifar10:
    """The study as something that can be run, run by run. data_folder: where the images lie."""

    settings: Cifar10Settings
    data_folder: Path

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "cifar10"
    retrains: ClassVar[bool] = False

    @property
    def length(self) -> Length:
        """How long a search is; the last, partial minibatch of an epoch is left out."""
        settings = self.settings
        return Length(settings.images // settings.batch, settings.epochs, settings.warmup, settings.records)

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""
        return {
            "turns": str(self.length),
            "warm-up": "one for all sparse strategies of a seed",
            "then in turn": "a step of the weights (SGD, Nesterov) and one of theta (Adam), half of the data each",
            "learning rates": "annealed to 0 along a cosine",
            "augmentation": "flips, and crops after a border of 4 pixels, on both halves",
        }

    def check(self, strategy: str, seed: int) -> None:
        """The images must be there and be the right ones."""
        cifar10.parts(self.data_folder, self.settings.images)

    def begin(self, strategy: str, seed: int) -> tuple[Search, TwoStreams]:
        """A search at its beginning, and both halves of the data."""
        return self.make_search(strategy, seed), self.make_data(seed)

    def answer_of(self, strategy: str) -> Answer:
        """As the strategy says."""
        return strategies.strategy_type(strategy).answer

    def make_search(self, strategy: str, seed: int) -> Search:
        """A search of the network, with weights that depend on the seed alone."""
        settings = self.settings
        with seeded(seed_of(seed)):
            network = ConvolutionCellNetwork(
                channels=settings.channels, cells=settings.cells, zero=settings.zero
            ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Search(
            network,
            strategies.for_task(strategy, examples=settings.batch, controller_rate=settings.controller_rate),
            steps=self.length.turns,
            warmup=self.length.warmup_turns,
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
        """Both halves, in an order and with an augmentation of the seed's own."""
        images, batch = cifar10.read_once(self.data_folder, "train"), self.settings.batch
        training, validation = (
            ImageStream(images, half, batch=batch, seed=seed_of(seed, purpose))
            for half, purpose in zip(cifar10.parts(self.data_folder, self.settings.images), _PURPOSES, strict=True)
        )
        return TwoStreams(partial(loss_at, training), partial(loss_at, validation))

    def evaluate(self, strategy: str, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """Nothing to do: the benchmark's table knows every cell."""
        return {}


def comparison(preset: str, data_folder: Path, *, zero: bool = False) -> Comparison:
    """The study of a preset; see `Cifar10Settings`."""
    return Comparison(Cifar10(replace(PRESETS[preset], zero=zero), data_folder), STRATEGIES, SEEDS[preset])


def loss_at(stream: ImageStream, step: int) -> LossOf:
    """The loss on minibatch number `step` of a stream."""
    batch = stream.batch(step)
    return lambda model: cross_entropy(model, batch)

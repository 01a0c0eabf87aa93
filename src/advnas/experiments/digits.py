"""The small study that needs no download: a convolutional cell on handwritten digits, retrained and tested."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from advnas import strategies
from advnas.experiments.experiment import Found, Length, TwoStreams
from advnas.randomness import seed_of
from advnas.retrain import retrain
from advnas.search import LossOf, Search, check_count
from advnas.space import SearchSpace
from advnas.spaces.convolution_cell import ConvolutionCellNetwork
from advnas.tasks import Task, digits
from advnas.tasks.digits import Digits, DigitStream

_TRAINING, _VALIDATION, _FRESH, _RETRAINING = range(4)  # purposes of the seeds of this study
_FOR_WEIGHTS, _FOR_THETA = 700, 500  # of the 1,797; the rest is for the test


@dataclass(frozen=True)
class DigitsSettings:
    """Everything that decides the outcome.

    warmup: epochs with theta fixed; each epoch after it alternates weight and theta steps. records: how many an
    epoch, each with a checkpoint.
    """

    channels: int = 4
    cells: int = 1
    zero: bool = True
    batch: int = 32
    epochs: int = 60
    warmup: int = 20
    retrain_epochs: int = 40
    weight_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    theta_rate: float = 0.02
    theta_betas: tuple[float, float] = (0.5, 0.999)
    clip: float = 1.0
    records: int = 1

    def __post_init__(self) -> None:
        for name in ("channels", "cells", "batch", "epochs", "retrain_epochs", "records"):
            check_count(name, getattr(self, name))
        check_count("warmup", self.warmup, least=0)


PRESETS = {"quick": DigitsSettings(epochs=4, warmup=2, retrain_epochs=2), "laptop": DigitsSettings()}
SEEDS = {"quick": 1, "laptop": 3}
STRATEGIES = ("advantage", "random")


@dataclass(frozen=True)
class DigitsExperiment:
    """The study as something that can be run, run by run."""

    settings: DigitsSettings

    name: ClassVar[str] = "digits"

    @property
    def length(self) -> Length:
        """How long a search is; the last, partial minibatch of an epoch is left out."""
        settings = self.settings
        return Length(_FOR_WEIGHTS // settings.batch, settings.epochs, settings.warmup, settings.records)

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""
        sizes = "{} for the weights, {} for theta, {} for the test".format(*map(len, _parts()))
        return {
            "digits": sizes,
            "turns": str(self.length),
            "then in turn": "a step of the weights (SGD, Nesterov) and one of theta (Adam)",
            "answer": "the argmax; for random the process best",
            "retraining": "from scratch; the epoch with the best loss on theta's digits is tested",
        }

    def check(self) -> None:
        """Nothing can be missing."""

    def make_search(self, strategy: str, seed: int) -> Search:
        """A search of the network, with weights that depend on the seed alone."""
        settings = self.settings
        return Search(
            self._network(seed, affine=False),
            strategies.get(strategy),
            steps=self.length.turns,
            warmup=self.length.warmup_turns,
            weight_optimizer=self._weight_optimizer,
            architecture_optimizer=partial(
                torch.optim.Adam, lr=settings.theta_rate, betas=settings.theta_betas, fused=True
            ),
            weight_clip=settings.clip,
            architecture_clip=settings.clip,
            seed=seed,
        )

    def make_data(self, seed: int) -> TwoStreams:
        """Two parts of the digits, in orders of the seed's own."""
        training, validation = (
            DigitStream(part, batch=self.settings.batch, seed=seed_of(seed, purpose))
            for part, purpose in zip(_parts(), (_TRAINING, _VALIDATION), strict=False)
        )
        return TwoStreams(partial(loss_at, training), partial(loss_at, validation))

    def evaluate(self, strategy: str, seed: int, found: Found, folder: Path) -> dict[str, Any]:
        """Retrain the answer from scratch and test it."""
        by, architecture = found.answer(by_process_best=strategy == "random")
        network = SearchSpace(self._network(seed, affine=True)).derive(architecture, fresh=seed_of(seed, _FRESH))
        training, validation, test = _parts()
        loader = DataLoader(_pairs(training), self.settings.batch, shuffle=True, drop_last=True)
        outcome = retrain(
            network,
            Task(loader, DataLoader(_pairs(validation), len(validation)), _loss),
            epochs=self.settings.retrain_epochs,
            optimizer=self._weight_optimizer,
            clip=self.settings.clip,
            seed=seed_of(seed, _RETRAINING),
            folder=folder,
        )
        return {
            "by": by,
            "architecture": dict(architecture),
            "test_accuracy": accuracy(outcome.model, test),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "best_epoch": outcome.best.number,
        }

    def _network(self, seed: int, *, affine: bool) -> nn.Module:
        settings = self.settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed))
            return ConvolutionCellNetwork(
                inputs=1, channels=settings.channels, cells=settings.cells, zero=settings.zero, affine=affine
            )

    def _weight_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        settings = self.settings
        return torch.optim.SGD(
            parameters,
            lr=settings.weight_rate,
            momentum=settings.momentum,
            nesterov=True,
            weight_decay=settings.weight_decay,
        )


def _parts() -> tuple[Digits, Digits, Digits]:
    """For the weights, for theta, and for the test."""
    known, end = digits.read(), _FOR_WEIGHTS + _FOR_THETA
    return known[:_FOR_WEIGHTS], known[_FOR_WEIGHTS:end], known[end:]


def _pairs(known: Digits) -> TensorDataset:
    return TensorDataset(known.images, known.labels)


def accuracy(model: nn.Module, known: Digits) -> float:
    """Percent of the digits that a model reads right."""
    model.eval()
    with torch.no_grad():
        right = model(known.images).argmax(1) == known.labels
    return 100 * float(right.sum()) / len(known)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def loss_at(stream: DigitStream, step: int) -> LossOf:
    """The loss on minibatch number `step` of a stream."""
    batch = stream.at(step)
    return lambda model: _loss(model, (batch.images, batch.labels))

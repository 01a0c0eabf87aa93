"""What a study is: searches that can be stepped through, how long they are, and what their answers are worth."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from advnas.architecture import Architecture
from advnas.search import LossOf, Search
from advnas.strategies import Answer


@dataclass(frozen=True)
class Found:
    """The two answers of a search."""

    argmax: Architecture
    process_best: Architecture | None

    @classmethod
    def by(cls, search: Search) -> Self:
        """What a search has found so far."""
        best = search.process_best
        return cls(search.argmax(), None if best is None else best.architecture)

    def taken(self, by: Answer) -> tuple[str, Architecture]:
        """How the answer was taken, and the answer; the argmax where no process best is known."""
        if by == "process_best" and self.process_best is not None:
            return "process best", self.process_best
        return "argmax", self.argmax


@dataclass(frozen=True)
class Length:
    """How long a search is, counted in turns of Algorithm 1's loop.

    per_epoch: turns in one pass over the training data. epochs: passes of the whole search. warmup: passes at its
    beginning with theta fixed. records: how many per pass, each with a checkpoint.
    """

    per_epoch: int
    epochs: int
    warmup: int
    records: int

    @property
    def turns(self) -> int:
        """Of the whole search."""
        return self.epochs * self.per_epoch

    @property
    def warmup_turns(self) -> int:
        """In how many of the first ones theta stays fixed."""
        return self.warmup * self.per_epoch

    @property
    def record_every(self) -> int:
        """Turns between two records."""
        return max(1, self.per_epoch // self.records)

    def __str__(self) -> str:
        return f"{self.turns:,}, {self.per_epoch:,} per epoch; theta fixed for the first {self.warmup_turns:,}"


class Study(Protocol):
    """Strategies x seeds under one setting. It can be sent to another process."""

    @property
    def name(self) -> str:
        """What the study is called."""

    @property
    def title(self) -> str:
        """What is searched, for people."""

    @property
    def retrains(self) -> bool:
        """Whether answers are judged by retraining them; otherwise a table knows what they are worth."""

    @property
    def settings(self) -> Any:
        """A frozen dataclass: everything that decides the outcome."""

    @property
    def length(self) -> "Length":
        """How long a search is."""

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""

    def check(self, strategy: str, seed: int) -> None:
        """Raise now what would otherwise stop every run, such as missing data."""

    def begin(self, strategy: str, seed: int) -> "tuple[Search, Minibatches]":
        """Make a search at its very beginning and its data; the data are the same for all strategies of a seed."""

    def answer_of(self, strategy: str) -> Answer:
        """Say which architecture is a strategy's result: the most likely one, or the best one that was drawn."""

    def evaluate(self, strategy: str, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """What a search that is over has found is worth, where that takes more than a look into a table.

        folder: for checkpoints, and for what is to be kept beyond the numbers.
        """


class Minibatches(Protocol):
    """Data that know what is due at a search's position. What they carry along beyond it is saved with it."""

    def losses(self, search: Search) -> tuple[LossOf, Callable[[], LossOf]]:
        """What `Search.turn` takes: the losses on the minibatches that are due."""

    def state(self) -> dict[str, Any]:
        """What is carried from one step to the next, such as a hidden state."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what was carried."""

    def measure(self, search: Search) -> float | None:
        """How good the most likely architecture is by now, where that is cheap to know; the more the better."""


@dataclass(frozen=True)
class TwoStreams:
    """Minibatches that depend on the seed and the number of steps taken, so all strategies see the same.

    training, validation: give the loss on minibatch number n, for the weights and for theta.
    """

    training: Callable[[int], LossOf]
    validation: Callable[[int], LossOf]

    def losses(self, search: Search) -> tuple[LossOf, Callable[[], LossOf]]:
        """Of the weights on one part of the data, and of theta on the other."""
        return self.training(search.weight_steps), lambda: self.validation(search.architecture_steps)

    def state(self) -> dict[str, Any]:
        """Nothing beyond the position."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing beyond the position."""

    def measure(self, search: Search) -> None:
        """Not known before the end."""

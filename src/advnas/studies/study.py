"""What a study is: searches that can be stepped through, how long they are, and what their answers are worth."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from advnas import strategies
from advnas.architecture import Architecture
from advnas.search import Length, Minibatches, Search
from advnas.strategies import Answer


@dataclass(frozen=True)
class Found:
    """The answers of a search; `staged`, that of an answer stage, is None where there was none."""

    argmax: Architecture
    process_best: Architecture | None
    staged: Architecture | None = None

    @classmethod
    def by(cls, search: Search, staged: Architecture | None = None) -> Self:
        """What a search has found so far."""
        best = search.process_best
        return cls(search.argmax(), None if best is None else best.architecture, staged)

    def taken(self, by: Answer) -> "Taken":
        """How the answer was taken, and the answer; the argmax where no other is known."""
        if by == "process_best" and self.process_best is not None:
            return "process best", self.process_best
        if by in ("ranked", "refined") and self.staged is not None:
            return by, self.staged
        return "argmax", self.argmax


def answer_of(strategy: str, asked: Answer | None) -> Answer:
    """Say which architecture is a strategy's result: as asked for, if it learns, and else as it says itself."""
    kind = strategies.strategy_type(strategy)
    return kind.answer if asked is None or not kind.learns else asked


Taken = tuple[str, Architecture]
"""How the answer of a search was taken, such as "process best", and the answer."""


class Study(Protocol):
    """Strategies x seeds under one setting. It can be sent to another process."""

    @property
    def name(self) -> str:
        """What the study is called."""

    @property
    def title(self) -> str:
        """What is searched, for people."""

    @property
    def table(self) -> str | None:
        """Which of `advnas.tables.TABLES` knows what answers are worth; None: they are retrained."""

    @property
    def settings(self) -> Any:
        """A frozen dataclass: everything that decides the outcome."""

    @property
    def length(self) -> Length:
        """How long a search is."""

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""

    def check(self, strategy: str, seed: int) -> None:
        """Raise now what would otherwise stop every run, such as missing data."""

    def begin(self, strategy: str, seed: int) -> tuple[Search, Minibatches]:
        """Make a search at its very beginning and its data; the data are the same for all strategies of a seed."""

    def answer_of(self, strategy: str) -> Answer:
        """Say which architecture is a strategy's result; see `Strategy.answer`."""

    def evaluate(self, answer: Taken, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """What the answer of a search that is over is worth, where that takes more than a look into a table.

        folder: for checkpoints, and for what is to be kept beyond the numbers.
        """


@dataclass(frozen=True)
class Comparison:
    """A study, the strategies that it compares by default, and over how many seeds."""

    study: Study
    strategies: tuple[str, ...]
    seeds: int

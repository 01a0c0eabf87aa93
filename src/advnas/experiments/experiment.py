"""What a study needs to know of an experiment: searches it can step through, and how long they are."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from advnas.architecture import Architecture
from advnas.search import LossOf, Search


@dataclass(frozen=True)
class Found:
    """The two answers of a search."""

    argmax: Architecture
    process_best: Architecture | None


class Experiment(Protocol):
    """One of the paper's studies, setting by setting. It can be sent to another process."""

    @property
    def name(self) -> str:
        """What the study is called."""

    @property
    def settings(self) -> Any:
        """A frozen dataclass: everything that decides the outcome."""

    @property
    def steps_per_epoch(self) -> int:
        """Turns of the loop in one pass over the training data."""

    @property
    def steps(self) -> int:
        """Turns of the whole search."""

    @property
    def warmup(self) -> int:
        """In how many of the first ones theta stays fixed."""

    @property
    def record_every(self) -> int:
        """Turns between two records, which are also checkpoints."""

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""

    def check(self) -> None:
        """Raise now what would otherwise stop every run, such as missing data."""

    def make_search(self, strategy: str, seed: int) -> Search:
        """The search at its very beginning."""

    def make_data(self, seed: int) -> "Minibatches":
        """The data of a run; the same for all strategies of a seed."""

    def evaluate(self, strategy: str, seed: int, found: Found, folder: Path) -> dict[str, Any]:
        """What the found one is worth, where that takes more than a look into a table. folder: for checkpoints."""


class Minibatches(Protocol):
    """Data that know what is due at a search's position. What they carry along beyond it is saved with it."""

    def losses(self, search: Search) -> tuple[LossOf, Callable[[], LossOf]]:
        """What `Search.turn` takes: the losses on the minibatches that are due."""

    def state(self) -> dict[str, Any]:
        """What is carried from one step to the next, such as a hidden state."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what was carried."""

"""What a study needs to know of an experiment: searches it can step through, and how long they are."""

from collections.abc import Callable
from typing import Any, Protocol

from advnas.search import LossOf, Search


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

    def check(self) -> None:
        """Raise now what would otherwise stop every run, such as missing data."""

    def make_search(self, strategy: str, seed: int) -> Search:
        """The search at its very beginning."""

    def losses(self, search: Search, seed: int) -> tuple[LossOf, Callable[[], LossOf]]:
        """What `Search.turn` takes: the losses on the minibatches that are due at the search's position."""

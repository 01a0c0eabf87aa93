"""What the loop advances, and whom it tells about it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol


class Work(Protocol):
    """What the loop advances."""

    @property
    def position(self) -> int:
        """How many turns were taken."""

    def turn(self) -> Iterable[Any]:
        """Take the next turn; yield a dataclass per step, each before the next is taken."""

    def record(self) -> dict[str, Any] | None:
        """Measure where the run stands, as plain values; None where the journal says it all."""

    def state(self, folder: Path) -> dict[str, Any]:
        """Return everything that decides how the run goes on. Further files may be written into the folder."""

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Load a state completely, or raise ValueError and change nothing."""


class Keeper(Protocol):
    """What the loop tells about its turns: a Recorder, or what stands before one."""

    @property
    def has_records(self) -> bool:
        """Whether anything was measured yet."""

    def end_warmup(self) -> None:
        """Count the time from here on as the search."""

    def note(self, step: Any) -> None:
        """Take down a step."""

    def record(self) -> object:
        """Measure."""

    def end_turn(self, *, save: bool) -> None:
        """Save if that is due; raise an exception to stop."""

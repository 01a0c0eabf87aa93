"""Store: the protocol, and the store that leaves everything where it is."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.space import SearchSpace
from advnas.stores.archive import Manifest, read_units
from advnas.stores.candidate_weights import CandidateWeights, find_candidate_weights


class Store(Protocol):
    """Keeps the weights of the candidates, and the optimiser's state of these weights, between the steps."""

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Take the candidates of a space in; done once, when a Search is made."""

    def loaded(self, draw: Draw, *, training: bool) -> AbstractContextManager[None]:
        """While this is open, the active candidates of a draw are on the compute device.

        training: their weights may change, and the optimiser's state is needed too. May be entered again inside.
        """

    def sync(self) -> None:
        """Take in what has changed outside a step: weights and optimiser state that were loaded."""

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Make the weights' part of a search's state small enough to be saved whole.

        What is left out is in files of `folder` when this returns, and in a manifest under "units".
        """

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Load what some store's `pack` left out."""


class Resident:
    """Everything stays on the compute device."""

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Nothing moves."""
        self._space, self._optimizer = space, optimizer

    def loaded(self, draw: Draw, *, training: bool) -> AbstractContextManager[None]:
        """It is there already."""
        return nullcontext()

    def sync(self) -> None:
        """Nothing moves."""

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Everything, in one piece."""
        return dict(weights)

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Read the units of a disk store into ordinary memory."""
        units: list[CandidateWeights] = list(find_candidate_weights(self._space).values())
        for _ in read_units(folder, manifest, units, self._optimizer):
            pass

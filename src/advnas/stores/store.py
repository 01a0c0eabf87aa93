"""Store: the protocol, and the store that leaves everything where it is."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.space import SearchSpace
from advnas.stores.archive import Manifest, check_candidates, read_candidates
from advnas.stores.candidate_weights import CandidateWeights, find_candidate_weights


class Store(Protocol):
    """Keeps the weights of the candidates, and the optimiser's state of these weights, between the steps."""

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Take over the candidates of a space; called once, when a Search is made."""

    def loaded(self, draw: Draw, *, training: bool) -> AbstractContextManager[None]:
        """Keep the candidates on the path of a draw on the compute device while the block runs.

        Args:
            draw: What will run. The block may be entered again inside.
            training: Their weights may change, and the optimiser's state is needed too.
        """

    def lent(self, decision: int, candidate: int) -> AbstractContextManager[None]:
        """Keep one more candidate on the compute device, to be read, while the block runs."""

    def sync(self) -> None:
        """Take over what has changed outside a step: weights and optimiser state that were loaded."""

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Make the weights' part of a search's state small enough to be saved in one file.

        Args:
            weights: The weights' part of a search's state.
            folder: Where to write what is left out of it.
            step: Orders the calls.

        Returns:
            The state; a manifest of the files written to `folder` is under "units".
        """

    def check(self, manifest: Manifest, folder: Path) -> None:
        """Check what some store's `pack` left out, and change nothing.

        Args:
            manifest: What `pack` returned under "units".
            folder: What `pack` was given.

        Raises:
            DamagedCheckpoint: A file is missing or not what was written.
            ValueError: The files are of another network.
        """

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Load what some store's `pack` left out, after `check` has accepted it."""


class Resident:
    """Everything stays on the compute device."""

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Move nothing."""
        self._space, self._optimizer = space, optimizer

    def loaded(self, draw: Draw, *, training: bool) -> AbstractContextManager[None]:
        """Do nothing: they are there already."""
        return nullcontext()

    def lent(self, decision: int, candidate: int) -> AbstractContextManager[None]:
        """Do nothing: it is there already."""
        return nullcontext()

    def sync(self) -> None:
        """Move nothing."""

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Return everything."""
        return dict(weights)

    def check(self, manifest: Manifest, folder: Path) -> None:
        """Check the segments of a disk store."""
        check_candidates(folder, manifest, self._candidates())

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Load the segments of a disk store into ordinary memory."""
        for _ in read_candidates(folder, manifest, self._candidates(), self._optimizer):
            pass

    def _candidates(self) -> list[CandidateWeights]:
        return list(find_candidate_weights(self._space).values())

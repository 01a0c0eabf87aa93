"""Host: candidates are in host memory, and copied to the compute device when they are drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.space import SearchSpace
from advnas.stores.archive import Manifest, check_candidates, read_candidates
from advnas.stores.candidate_weights import AllCandidateWeights, check_unused


class Host:
    """Weights and optimiser state of the candidates in host memory, pinned where CUDA exists.

    A step copies those of its draw to the device and, where it moves weights, back afterwards. Shared weights and
    all buffers are on the device throughout.

    Args:
        device: Where to compute; where the model is, by default. Make a model that is too large for the device on
            the host.
    """

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self._device = device

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Move the candidates to host memory, one by one, and the rest to the device."""
        check_unused(self)
        self._compute = torch.device(self._device or space.device)
        self._optimizer = optimizer
        self._candidates = AllCandidateWeights(space, optimizer, _in_host_memory)
        self._candidates.sync(self._candidates)
        self._candidates.move_rest(space, self._compute)

    @contextmanager
    def loaded(self, draw: Draw, *, training: bool) -> Iterator[None]:
        """Keep the candidates of the draw on the device while the block runs."""
        with self._candidates.loaded(self._candidates.of(draw.path), self._compute, training=training):
            yield

    @contextmanager
    def lent(self, decision: int, candidate: int) -> Iterator[None]:
        """Keep one more candidate on the device while the block runs."""
        with self._candidates.loaded(self._candidates.of([(decision, candidate)]), self._compute, training=False):
            yield

    def sync(self) -> None:
        """Give new optimiser state a backing."""
        self._candidates.sync(self._candidates)

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Return everything: it is in memory anyway."""
        return dict(weights)

    def check(self, manifest: Manifest, folder: Path) -> None:
        """Check the segments of a disk store."""
        check_candidates(folder, manifest, self._candidates)

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Load the segments of a disk store."""
        for candidate in read_candidates(folder, manifest, self._candidates, self._optimizer):
            self._candidates.sync([candidate])


def _in_host_memory(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available()).copy_(tensor)

"""Host: candidates live in host memory and visit the compute device when they are drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.space import SearchSpace
from advnas.stores.archive import Manifest, read_units
from advnas.stores.candidate_weights import AllCandidateWeights, check_unused


class Host:
    """Weights and optimiser state of the candidates in host memory, pinned where CUDA exists.

    A step copies those of its draw to the device and, where it moves weights, back afterwards. Shared weights and
    all buffers are on the device throughout.

    device: where to compute; where the model is, by default. A model too large for the device is made on the host.
    """

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self._device = device

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Bring the candidates backing, one by one, and the rest to the device."""
        check_unused(self)
        self._compute = torch.device(self._device or space.device)
        self._optimizer = optimizer
        self._units = AllCandidateWeights(space, optimizer, _in_host_memory)
        self._units.sync(self._units)
        self._units.move_rest(space, self._compute)

    @contextmanager
    def loaded(self, draw: Draw, *, training: bool) -> Iterator[None]:
        """The candidates of the draw are on the device."""
        with self._units.away(self._units.of(draw), self._compute, training=training):
            yield

    def sync(self) -> None:
        """Give new optimiser state a backing."""
        self._units.sync(self._units)

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Everything, in one piece: it is in memory anyway."""
        return dict(weights)

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Read the units of a disk store."""
        for unit in read_units(folder, manifest, list(self._units), self._optimizer):
            self._units.sync([unit])


def _in_host_memory(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available()).copy_(tensor)

"""Disk: candidates live in a memory-mapped file; only what recent draws touched is in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.arguments import format_size, parse_size
from advnas.space import SearchSpace
from advnas.stores.archive import Archive, Manifest, read_units, without
from advnas.stores.arena import Arena
from advnas.stores.candidate_weights import AllCandidateWeights, CandidateWeights, check_unused


class Disk:
    """Weights and optimiser state of the candidates in a scratch file that is mapped into memory.

    On a CPU they are used where they are, and nothing is copied; for another device the drawn ones are copied
    there and back. The least recently drawn candidates leave memory first.

        store = advnas.stores.Disk("2GB")
        with store.building():          # for a model that is larger than memory
            model = Net()
        search = advnas.Search(model, weights=store)

    budget: how much of the candidates' weights and optimiser state may be in memory, counted in stretches of 64 KB
        as the kernel maps them. The shared weights, the gradients of one draw and the activations come on top.
    folder: where the scratch file is; the system's temporary folder by default. Take care that it is on a disk.
    device: where to compute; where the model is, by default.
    """

    def __init__(
        self,
        budget: int | str,
        *,
        folder: Path | str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.budget = parse_size(budget)
        self._device = device
        self._arena = Arena(None if folder is None else Path(folder))
        self._recent: dict[str, CandidateWeights] = {}  # those in memory, the least recently drawn first
        self._changed: set[str] = set()  # since the last checkpoint
        self._footprints: dict[tuple[str, int], int] = {}
        self._archive: Archive | None = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Modules that are made while this is open have their weights in the file from the start.

        They get the numbers that they would have got otherwise.
        """
        placed = 0

        def place(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            nonlocal placed
            if parameter is None or is_lazy(parameter) or self._arena.holds(parameter):
                return
            if placed + parameter.nbytes > self.budget:
                self._arena.release_all()
                placed = 0
            parameter.data = self._arena.place(parameter.data)
            placed += parameter.nbytes

        hook = register_module_parameter_registration_hook(place)
        try:
            yield
        finally:
            hook.remove()
            self._arena.release_all()

    def attach(self, space: SearchSpace, optimizer: Optimizer) -> None:
        """Move the candidates into the file, one by one, and the rest to the device."""
        check_unused(self)
        compute = torch.device(self._device or space.device)
        self._elsewhere = None if compute.type == "cpu" else compute
        self._optimizer = optimizer
        self._units = AllCandidateWeights(space, optimizer, self._home)
        self.sync()
        self._units.move_rest(space, compute, must_leave=self._arena.holds)
        self.release()

    def _home(self, tensor: Tensor) -> Tensor:
        return tensor if self._arena.holds(tensor) else self._arena.place(tensor)

    @contextmanager
    def loaded(self, draw: Draw, *, training: bool) -> Iterator[None]:
        """The candidates of the draw are in memory, and those that had to make room for them are not."""
        units = self._units.of(draw)
        self._fetch(units)
        if training:
            self._changed.update(unit.name for unit in units)
        with self._units.away(units, self._elsewhere, training=training):
            yield
        self._make_room(0)  # the optimiser may have made new state

    def release(self, *, cached: bool = True) -> None:
        """Let all candidates leave memory, after something has read them all: they return when they are used.

        cached: whether the kernel may keep what it has of the file; else the next draw is read from the disk.
        """
        self._recent.clear()
        if cached:
            self._arena.release_all()
        else:
            self._arena.drop()

    def sync(self) -> None:
        """Move new optimiser state into the file; whatever is there may have changed."""
        for unit in self._units:
            self._take_in(unit)
            self._changed.add(unit.name)

    def _take_in(self, unit: CandidateWeights) -> None:
        self._units.sync([unit])
        self._recent[unit.name] = self._recent.pop(unit.name, unit)
        self._make_room(0)

    def _fetch(self, units: list[CandidateWeights]) -> None:
        size = sum(map(self._footprint, units))
        if size > self.budget:
            raise ValueError(
                f"One draw needs {format_size(size)} of the candidates' weights and optimiser state, and "
                f"memory_budget is {format_size(self.budget)}. Give more, or take a strategy that runs fewer "
                "candidates at a time."
            )
        absent = [unit for unit in units if self._recent.pop(unit.name, None) is None]
        self._make_room(size)
        self._recent |= {unit.name: unit for unit in units}
        self._arena.fetch(backing for unit in absent for backing in unit.backings)

    def _make_room(self, size: int) -> None:
        """Let go of units until so many bytes can come in; never of those that are in use."""
        held = sum(map(self._footprint, self._recent.values()))
        for name, unit in list(self._recent.items()):
            if held + size <= self.budget:
                return
            if not unit.away:
                self._arena.release(unit.backings)
                held -= self._footprint(self._recent.pop(name))

    def _footprint(self, unit: CandidateWeights) -> int:
        """Looked up by name and size: it changes only when the optimiser makes new state."""
        key = unit.name, unit.bytes
        if key not in self._footprints:
            self._footprints[key] = self._arena.footprint(unit.backings)
        return self._footprints[key]

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Write the units that have changed since the last checkpoint into a file of their own."""
        if self._archive is None or self._archive.folder != folder:
            self._archive = Archive(folder)
        self._units.sync(self._units)
        manifest = self._archive.write(self._units, self._changed, step, self._after_use)
        self._changed.clear()
        return {**without(weights, self._units), "units": manifest}

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Read units back into the file, within the budget."""
        for unit in read_units(folder, manifest, list(self._units), self._optimizer):
            self._take_in(unit)
        self._archive = Archive(folder, manifest)
        self._changed.clear()

    def _after_use(self, unit: CandidateWeights) -> None:
        if unit.name not in self._recent:
            self._arena.release(unit.backings)

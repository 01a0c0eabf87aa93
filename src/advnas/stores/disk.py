"""Disk: candidates are in a memory-mapped file; only what recent draws used is in memory."""

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
from advnas.stores.archive import Archive, Manifest, check_candidates, read_candidates, without
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

    Args:
        budget: How much of the candidates' weights and optimiser state may be in memory, counted in blocks of 64 KB
            as the kernel maps them. The shared weights, the gradients of one draw, the activations, and after them
            the copy that undoes a step which fails, need more.
        folder: Where the scratch file is; the system's temporary folder by default. Make sure that it is on a disk.
        device: Where to compute; where the model is, by default.
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
        """Put the weights of modules that are made in the block into the file from the start.

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
        self._other_device = None if compute.type == "cpu" else compute
        self._optimizer = optimizer
        self._candidates = AllCandidateWeights(space, optimizer, self._place)
        self.sync()
        self._candidates.move_rest(space, compute, must_leave=self._arena.holds)
        self.release()

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor if self._arena.holds(tensor) else self._arena.place(tensor)

    @contextmanager
    def loaded(self, draw: Draw, *, training: bool) -> Iterator[None]:
        """Keep the candidates of the draw in memory while the block runs; others leave if there is no room."""
        candidates = self._candidates.of(draw.path)
        if training:
            self._changed.update(candidate.name for candidate in candidates)
        with self._at_hand(candidates, training=training):
            yield

    @contextmanager
    def lent(self, decision: int, candidate: int) -> Iterator[None]:
        """Keep one more candidate in memory while the block runs; others leave if there is no room."""
        with self._at_hand(self._candidates.of([(decision, candidate)]), training=False):
            yield

    @contextmanager
    def _at_hand(self, candidates: list[CandidateWeights], *, training: bool) -> Iterator[None]:
        self._fetch(candidates)
        with self._candidates.loaded(candidates, self._other_device, training=training):
            yield
        self._make_room(0)  # the optimiser may have made new state

    def release(self, *, cached: bool = True) -> None:
        """Remove all candidates from memory, after something has read them all; they are read when they are used.

        Args:
            cached: Whether the kernel may keep what it has of the file; else the next draw is read from the disk.
        """
        self._recent.clear()
        if cached:
            self._arena.release_all()
        else:
            self._arena.drop()

    def sync(self) -> None:
        """Move new optimiser state into the file; whatever is there may have changed."""
        for candidate in self._candidates:
            self._sync(candidate)
            self._changed.add(candidate.name)

    def _sync(self, candidate: CandidateWeights) -> None:
        self._arena.check_process()
        self._candidates.sync([candidate])
        self._recent[candidate.name] = self._recent.pop(candidate.name, candidate)
        self._make_room(0)

    def _fetch(self, candidates: list[CandidateWeights]) -> None:
        self._arena.check_process()
        size = sum(map(self._footprint, candidates))
        in_use = sum(self._footprint(candidate) for candidate in self._recent.values() if candidate.loaded)
        if in_use + size > self.budget:
            raise ValueError(
                f"One draw needs {format_size(in_use + size)} of the candidates' weights and optimiser state, and "
                f"memory_budget is {format_size(self.budget)}. Give more, or use a strategy that runs fewer "
                "candidates at a time."
            )
        absent = [candidate for candidate in candidates if self._recent.pop(candidate.name, None) is None]
        self._make_room(size)
        self._recent |= {candidate.name: candidate for candidate in candidates}
        self._arena.fetch(backing for candidate in absent for backing in candidate.backings)

    def _make_room(self, size: int) -> None:
        """Remove candidates from memory until so many bytes are free; never those that are in use."""
        held = sum(map(self._footprint, self._recent.values()))
        for name, candidate in list(self._recent.items()):
            if held + size <= self.budget:
                return
            if not candidate.loaded:
                self._arena.release(candidate.backings)
                held -= self._footprint(self._recent.pop(name))

    def _footprint(self, candidate: CandidateWeights) -> int:
        """Look the memory up by name and size: it changes only when the optimiser makes new state."""
        key = candidate.name, candidate.bytes
        if key not in self._footprints:
            self._footprints[key] = self._arena.footprint(candidate.backings)
        return self._footprints[key]

    def pack(self, weights: Mapping[str, Any], folder: Path, step: int) -> dict[str, Any]:
        """Write the candidates that have changed since the last checkpoint into a new segment."""
        if self._archive is None or self._archive.folder != folder:
            self._archive = Archive(folder)
        self._arena.check_process()
        self._candidates.sync(self._candidates)
        manifest = self._archive.write(self._candidates, self._changed, step, self._after_use)
        self._changed.clear()
        return {**without(weights, self._candidates), "units": manifest}

    def check(self, manifest: Manifest, folder: Path) -> None:
        """Check the segments of a checkpoint."""
        check_candidates(folder, manifest, self._candidates)

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Load segments into the scratch file, within the budget."""
        for candidate in read_candidates(folder, manifest, self._candidates, self._optimizer):
            self._sync(candidate)
        self._archive = Archive(folder, manifest)
        self._changed.clear()

    def _after_use(self, candidate: CandidateWeights) -> None:
        if candidate.name not in self._recent:
            self._arena.release(candidate.backings)

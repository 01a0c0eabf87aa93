"""Archive: the units of a disk store beside the checkpoints, written once for every time they change."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.optim import Optimizer

from advnas.records.checkpoints import DamagedCheckpoint
from advnas.records.files import delete_temporary_files, replacing
from advnas.stores.candidate_weights import VALUE, CandidateWeights

Manifest = dict[str, list[Any]]
"""Where every unit is: its name -> [file, offset, length, SHA-256]."""


class Archive:
    """Segments: files that hold the units which changed between two checkpoints, and are never written again.

    A checkpoint says by its manifest which unit is in which segment. A segment is whole on the disk before the
    checkpoint that needs it is written, and is removed when neither of the last two checkpoints needs it.

    manifest: of the checkpoint that a run goes on from.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self.folder = folder
        self._kept = [] if manifest is None else [manifest]  # the last two checkpoints', the newest last

    def write(
        self,
        units: Iterable[CandidateWeights],
        changed: set[str],
        step: int,
        done: Callable[[CandidateWeights], None],
    ) -> Manifest:
        """Write what the next checkpoint needs and no segment has; returns the manifest of everything."""
        self._prune()
        known = self._kept[-1] if self._kept else {}
        stale = _mostly_stale(self.folder, known)
        current = {n: place for n, place in known.items() if n not in changed and place[0] not in stale}
        missing = [unit for unit in units if unit.name not in current]
        manifest = current | (self._write_segment(missing, step, done) if missing else {})
        self._kept = [*self._kept[-1:], manifest]
        return manifest

    def _write_segment(
        self, units: list[CandidateWeights], step: int, done: Callable[[CandidateWeights], None]
    ) -> Manifest:
        path = _unused(self.folder, step)
        entries: Manifest = {}
        with replacing(path) as file:
            for unit in units:
                entries[unit.name] = [path.name, file.tell(), *_write_unit(file, unit)]
                done(unit)
        return entries

    def _prune(self) -> None:
        """Remove segments that no checkpoint needs. Those of a save that was cut short are among them."""
        if not self._kept:  # nothing is known yet of what is there
            return
        needed = {place[0] for manifest in self._kept for place in manifest.values()}
        for path in self.folder.glob("segment-*.bin"):
            if path.name not in needed:
                path.unlink()
        delete_temporary_files(self.folder)


def _mostly_stale(folder: Path, manifest: Manifest) -> set[str]:
    """Segments of which less than half is still needed; what is left of them moves on, so that they can go."""
    live: dict[str, int] = defaultdict(int)
    for name, _, length, _ in manifest.values():
        live[name] += length
    return {name for name, length in live.items() if 2 * length < (folder / name).stat().st_size}


def _unused(folder: Path, step: int) -> Path:
    """A name that no checkpoint can mean yet: a run that went back may come to a step for the second time."""
    for number in range(1_000_000):
        path = folder / f"segment-{step:09d}-{number}.bin"
        if not path.exists():
            return path
    raise FileExistsError(f"{folder} is full of segments of step {step}. Remove those that no run needs.")


def _write_unit(file: BinaryIO, unit: CandidateWeights) -> tuple[int, str]:
    """The length of a text, JSON that says what comes, the bytes of every tensor; returns length and checksum."""
    layouts = [[*key, *_layout(offloaded.backing)] for key, offloaded in unit.tensors.items()]
    header = json.dumps(layouts).encode()
    digest, length = hashlib.sha256(), 0
    parts: list[bytes | memoryview] = [len(header).to_bytes(8, "little"), header, *map(_bytes, unit.backings)]
    for part in parts:
        digest.update(part)
        file.write(part)
        length += len(part)
    return length, digest.hexdigest()


def _layout(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())]


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a dense tensor, in the order in which it lies there."""
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def read_units(
    folder: Path, manifest: Manifest, units: list[CandidateWeights], optimizer: Optimizer
) -> Iterator[CandidateWeights]:
    """Read the weights and the optimiser state of one unit after the other."""
    different = set(manifest) ^ {unit.name for unit in units}
    if different:
        raise ValueError(
            f"The checkpoint is of another network: they differ in {', '.join(sorted(different))}. Make the model "
            "as it was made when the search began."
        )
    for unit in units:
        _read_unit(_read_record(folder, unit.name, *manifest[unit.name]), unit, optimizer)
        yield unit


def _read_record(folder: Path, unit: str, name: str, offset: int, length: int, checksum: str) -> memoryview:
    record = bytearray(length)
    try:
        with (folder / name).open("rb") as file:
            file.seek(offset)
            file.readinto(record)
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{folder / name} is missing; the checkpoint needs it for {unit!r}.") from None
    if hashlib.sha256(record).hexdigest() != checksum:
        raise DamagedCheckpoint(f"{folder / name} is damaged: the checksum of {unit!r} does not fit.")
    return memoryview(record)


def _read_unit(record: memoryview, unit: CandidateWeights, optimizer: Optimizer) -> None:
    start = int.from_bytes(record[:8], "little") + 8
    for name, key, dtype, shape, stride in json.loads(bytes(record[8:start])):
        saved = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype))
        _bytes(saved)[:] = record[start : start + saved.nbytes]
        start += saved.nbytes
        parameter = unit.parameters[name]
        if key == VALUE:
            parameter.data.copy_(saved)
        else:
            optimizer.state[parameter][key] = saved.to(parameter.device)


def without(weights: Mapping[str, Any], units: Iterable[CandidateWeights]) -> dict[str, Any]:
    """The weights' part of a search's state, less what is in the backings of units."""
    backings = {backing.data_ptr() for unit in units for backing in unit.backings}

    def others(values: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in values.items() if not (isinstance(v, Tensor) and v.data_ptr() in backings)}

    optimizer = weights["optimizer"]
    state = {index: others(values) for index, values in optimizer["state"].items()}
    return {**weights, "model": others(weights["model"]), "optimizer": {**optimizer, "state": state}}

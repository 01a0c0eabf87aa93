"""Archive: the candidates of a disk store beside the checkpoints, written once per change."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from advnas.records.files import delete_temporary_files, replacing
from advnas.stores.candidate_weights import VALUE, CandidateWeights
from advnas.stores.segments import read_record, write_record

Manifest = dict[str, list[Any]]
"""Where every candidate is: its name -> [file, offset, length, SHA-256]."""


class Archive:
    """Segments: files with the candidates that changed between two checkpoints, which are never written again.

    A checkpoint says by its manifest which candidate is in which segment. A segment is on the disk before the
    checkpoint that needs it is written, and is removed when neither of the last two checkpoints needs it.

    Args:
        folder: Where the segments are.
        manifest: The manifest of the checkpoint that a run resumes from.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self.folder = folder
        self._kept = [] if manifest is None else [manifest]  # the last two checkpoints', the newest last

    def write(
        self,
        candidates: Iterable[CandidateWeights],
        changed: set[str],
        step: int,
        done: Callable[[CandidateWeights], None],
    ) -> Manifest:
        """Write what the next checkpoint needs and no segment has.

        Args:
            candidates: All of them.
            changed: The names of those that changed since the last call.
            step: For the name of the segment.
            done: Called with each candidate when it is written.

        Returns:
            The manifest of all candidates.
        """
        self._prune()
        known = self._kept[-1] if self._kept else {}
        stale = _mostly_stale(self.folder, known)
        current = {n: entry for n, entry in known.items() if n not in changed and entry[0] not in stale}
        missing = [candidate for candidate in candidates if candidate.name not in current]
        manifest = current | (self._write_segment(missing, step, done) if missing else {})
        self._kept = [*self._kept[-1:], manifest]
        return manifest

    def _write_segment(
        self, candidates: list[CandidateWeights], step: int, done: Callable[[CandidateWeights], None]
    ) -> Manifest:
        path = _unused(self.folder, step)
        entries: Manifest = {}
        with replacing(path) as file:
            for candidate in candidates:
                entries[candidate.name] = [path.name, file.tell(), *write_record(file, candidate)]
                done(candidate)
        return entries

    def _prune(self) -> None:
        """Remove segments that no checkpoint needs. Those of a save that was cut short are among them."""
        if not self._kept:  # nothing is known yet of what is there
            return
        needed = {entry[0] for manifest in self._kept for entry in manifest.values()}
        for path in self.folder.glob("segment-*.bin"):
            if path.name not in needed:
                path.unlink()
        delete_temporary_files(self.folder)


def _mostly_stale(folder: Path, manifest: Manifest) -> set[str]:
    """Segments of which less than half is still needed; the rest of them is written again, so that they can go."""
    live: dict[str, int] = defaultdict(int)
    for name, _, length, _ in manifest.values():
        live[name] += length
    return {name for name, length in live.items() if 2 * length < (folder / name).stat().st_size}


def _unused(folder: Path, step: int) -> Path:
    """A name that no checkpoint can mean yet: a run that resumed may come to a step for the second time."""
    for number in range(1_000_000):
        path = folder / f"segment-{step:09d}-{number}.bin"
        if not path.exists():
            return path
    raise FileExistsError(f"{folder} is full of segments of step {step}. Remove those that no run needs.")


def check_candidates(folder: Path, manifest: Manifest, candidates: Iterable[CandidateWeights]) -> None:
    """Raise where `read_candidates` would, and change nothing.

    Args:
        folder: Where the segments are.
        manifest: What `Archive.write` returned, read from a checkpoint.
        candidates: All of them.

    Raises:
        DamagedCheckpoint: A record is missing or not what was written.
        ValueError: Manifest or records are of another network.
    """
    candidates = list(candidates)
    different = set(manifest) ^ {candidate.name for candidate in candidates}
    if different:
        raise ValueError(
            f"The checkpoint is of another network: they differ in {', '.join(sorted(map(str, different)))}. Make "
            "the model as it was made when the search began."
        )
    for candidate in candidates:
        read_record(folder, manifest[candidate.name], candidate)


def read_candidates(
    folder: Path, manifest: Manifest, candidates: Iterable[CandidateWeights], optimizer: Optimizer
) -> Iterator[CandidateWeights]:
    """Load weights and optimiser state, one candidate at a time.

    Args:
        folder: Where the segments are.
        manifest: One that `check_candidates` accepts.
        candidates: All of them.
        optimizer: Of their weights.

    Yields:
        Each candidate when it is loaded.
    """
    for candidate in candidates:
        for name, key, saved in read_record(folder, manifest[candidate.name], candidate):
            parameter = candidate.parameters[name]
            if key == VALUE:
                parameter.data.copy_(saved)
            else:
                optimizer.state[parameter][key] = saved.to(parameter.device)
        yield candidate


def without(weights: Mapping[str, Any], candidates: Iterable[CandidateWeights]) -> dict[str, Any]:
    """Leave out of the weights' part of a search's state what is in the backings of candidates."""
    backings = {backing.data_ptr() for candidate in candidates for backing in candidate.backings}

    def others(values: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in values.items() if not (isinstance(v, Tensor) and v.data_ptr() in backings)}

    optimizer = weights["optimizer"]
    state = {index: others(values) for index, values in optimizer["state"].items()}
    return {**weights, "model": others(weights["model"]), "optimizer": {**optimizer, "state": state}}

"""Saved states: plain torch files, and manifests with their hashes."""

import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from advnas.records.bounds import load_torch_file
from advnas.records.files import delete_temporary_files, is_plain_name, parse_json, replacing

FORMAT = 2
_KEPT = 2  # states per folder
_LARGEST_MANIFEST = 2**20  # bytes; far more than a manifest has
_CHECKSUM_LINE = re.compile(rb"[0-9a-f]{64}\n")  # what version 0.1 wrote in front of torch's content


class DamagedCheckpoint(ValueError):
    """A file is not what was written."""


Load = Callable[[dict[str, Any]], object]
"""Loads a state completely, or raises ValueError and changes nothing."""


def save_state(path: Path | str, state: Mapping[str, Any]) -> None:
    """Write a file that `torch.load(path, weights_only=True)` opens.

    The file is read back before it takes its name, so a state that could not be read again fails here.

    Args:
        path: The file; an old one is replaced.
        state: Tensors, numbers, texts and containers of them; see `plain` for what is converted.

    Raises:
        ValueError: A part of the state could not be read again; the message names its key.
    """
    with replacing(Path(path)) as file:
        _write(file, state)


def load_state(path: Path | str) -> dict[str, Any]:
    """Read what `save_state` wrote; nothing in the file can run code.

    Args:
        path: The file.

    Returns:
        The state, with its tensors on the CPU.

    Raises:
        DamagedCheckpoint: The file holds no state.
    """
    path = Path(path)
    _refuse_version_1(path)
    try:
        state = load_torch_file(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # of many kinds; torch's own text advises to allow code
        raise DamagedCheckpoint(
            f"{path} is damaged, or not a checkpoint: torch cannot read it ({type(error).__name__}). "
            "Restore it from a copy, or remove it."
        ) from error
    if not isinstance(state, dict):
        raise DamagedCheckpoint(
            f"{path} is not a checkpoint: it holds a {type(state).__name__}. Restore it from a copy, or remove it."
        )
    return state


def resume_from(path: Path, load: Load) -> None:
    """Load one file; an error names it.

    Args:
        path: What `save_state` wrote.
        load: Loads the state.

    Raises:
        DamagedCheckpoint: The file holds no state.
        ValueError: `load` raised it: the state does not fit.
    """
    state = load_state(path)
    try:
        load(state)
    except DamagedCheckpoint:
        raise
    except ValueError as error:
        raise ValueError(
            f"{path} does not fit this run: {error}. Nothing was changed. Use the model, the data and the settings "
            "that it was saved with, or give another folder."
        ) from error


class Checkpoints:
    """The last two states of a run; a damaged newest one costs the steps since the one before, not the run.

    A state is two files: `checkpoint-000000120.pt`, and `checkpoint-000000120.json`, its manifest. The manifest is
    written last. It gives size and SHA-256 of the first, so a state is complete if and only if it has a manifest.

    Args:
        folder: Where the states are. It is made at the first save.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Write a state and delete all but this and the one before, also those of later steps.

        A run that has come to this step has no later ones: they are of another run, or were given up.

        Args:
            state: What `save_state` takes.
            step: Orders the states.

        Raises:
            ValueError: A part of the state could not be read again; the message names its key.
        """
        data = self.folder / f"checkpoint-{step:09d}.pt"
        manifest = data.with_suffix(".json")
        manifest.unlink(missing_ok=True)  # of a damaged state of the same step
        with replacing(manifest) as listing, replacing(data) as file:
            _write(file, state)
            files = {data.name: _fingerprint(Path(file.name))}
            listing.write(json.dumps({"format": FORMAT, "step": step, "files": files}).encode())
        self._delete_others(data)

    def resume(self, load: Load) -> bool:
        """Load the newest complete state, and delete temporary files left by killed writers.

        Args:
            load: Loads a state. It may raise DamagedCheckpoint too: a state may refer to further files.

        Returns:
            Whether there was a state.

        Raises:
            DamagedCheckpoint: There are states, and all are damaged.
            ValueError: The newest complete state does not fit, or version 0.1 wrote it.
        """
        resumed = self._load_newest(load)
        delete_temporary_files(self.folder)
        return resumed

    def clear(self) -> None:
        """Delete all states: the run is over, and its result is elsewhere."""
        for path in self._states():
            _delete(path)

    def any(self) -> bool:
        """Whether there are states, complete or not."""
        return bool(self._states())

    def _load_newest(self, load: Load) -> bool:
        """Load the newest complete state. Where all are damaged, starting over would lose the run."""
        damaged: list[DamagedCheckpoint] = []
        for path in self._complete():
            try:
                _check(path)
                resume_from(path, load)
            except DamagedCheckpoint as error:
                damaged.append(error)
                continue
            except ValueError as error:
                if damaged:
                    raise _with_damage(error, damaged) from error
                raise
            for problem in damaged:
                warnings.warn(f"{problem} Resuming from an earlier checkpoint.", stacklevel=4)
            return True
        if damaged:
            raise DamagedCheckpoint(
                f"No checkpoint in {self.folder} can be read: {' '.join(map(str, damaged))} Restore the files from "
                "a copy, or remove them to start over."
            )
        return False

    def _complete(self) -> list[Path]:
        """The states, newest first, without one whose writer was killed before it wrote the manifest."""
        newest_first = self._states()[::-1]
        if newest_first and not newest_first[0].with_suffix(".json").exists():
            _refuse_version_1(newest_first[0])
            return newest_first[1:]
        return newest_first

    def _states(self) -> list[Path]:
        """The data files, oldest first, also where there is only the manifest."""
        found = [*self.folder.glob("checkpoint-*.pt"), *self.folder.glob("checkpoint-*.json")]
        return sorted({path.with_suffix(".pt") for path in found})

    def _delete_others(self, newest: Path) -> None:
        complete = [path for path in self._states() if path <= newest and path.with_suffix(".json").exists()]
        for path in set(self._states()) - set(complete[-_KEPT:]):
            _delete(path)


def _with_damage(error: ValueError, damaged: Sequence[DamagedCheckpoint]) -> ValueError:
    """Say which newer states were skipped: an earlier one may not fit what would have fitted them."""
    return ValueError(
        f"{error} Newer checkpoints were skipped: {' '.join(map(str, damaged))} If this run was over and is to be "
        "longer now, resume it with its old number of epochs first: that takes the lost steps again."
    )


def _write(file: BinaryIO, state: Mapping[str, Any]) -> None:
    import torch  # here and below, so that journals and texts can be read without it

    from advnas.records.plain import plain

    content = plain(dict(state), "")
    try:
        torch.save(content, file)
    except RuntimeError as error:  # torch fails once more when it closes what it could not write
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None
    file.flush()
    try:
        _read(Path(file.name), mmap=True)  # without a second copy in memory
    except Exception as error:
        name = _unreadable(content, "") or "the state"
        raise ValueError(
            f"{name} could not be read again after it was saved ({type(error).__name__}), so nothing was saved. "
            "Write a tensor, a number, a text, or a list or dict of them instead."
        ) from error


def _read(source: Path | BinaryIO, *, mmap: bool = False) -> Any:
    """The restricted reader: tensors, numbers, texts and containers of them, and no code."""
    import torch

    return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)


def _unreadable(value: Any, name: str) -> str:
    """The path of keys to the first part that cannot be saved and read again; empty if there is none."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    for key, part in inner:
        found = _unreadable(part, f"{name}.{key}" if name else str(key))
        if found:
            return found
    return "" if _survives(value) else name


def _survives(value: Any) -> bool:
    import torch

    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        _read(buffer)
    except Exception:
        return False
    return True


def _refuse_version_1(path: Path) -> None:
    with path.open("rb") as file:
        if _CHECKSUM_LINE.fullmatch(file.read(65)):
            raise ValueError(
                f"{path} was written by version 0.1 of advnas and cannot be read by this one: finish with version "
                "0.1, or give another folder."
            )


def _delete(path: Path) -> None:
    path.with_suffix(".json").unlink(missing_ok=True)  # first: without it the state counts as incomplete
    path.unlink(missing_ok=True)


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def _check(path: Path) -> None:
    """Raise DamagedCheckpoint unless the files of a state are those that its manifest names."""
    for name, expected in _read_manifest(path.with_suffix(".json"), path.name).items():
        file = path.with_name(name)
        if not file.exists():
            raise DamagedCheckpoint(f"{file} is missing.")
        if file.stat().st_size != expected["bytes"]:
            raise DamagedCheckpoint(
                f"{file} is damaged: it has {file.stat().st_size} bytes instead of {expected['bytes']}."
            )
        if _fingerprint(file) != expected:
            raise DamagedCheckpoint(f"{file} is damaged: its SHA-256 is not the one in its manifest.")


def _read_manifest(path: Path, data: str) -> dict[str, dict[str, Any]]:
    """The files of a state: name -> SHA-256 and bytes."""
    if not path.exists():
        raise DamagedCheckpoint(f"{path} is missing.")
    if path.stat().st_size > _LARGEST_MANIFEST:
        raise DamagedCheckpoint(f"{path} is damaged: it is too large for a manifest.")
    try:
        manifest = parse_json(path.read_bytes(), str(path))
    except ValueError as error:
        raise DamagedCheckpoint(f"{path} is damaged: {error}") from error
    files = manifest.get("files")
    named = f"checkpoint-{manifest['step']:09d}.pt" if type(manifest.get("step")) is int else None
    if manifest.get("format") != FORMAT or named != data or not isinstance(files, dict) or data not in files:
        raise DamagedCheckpoint(f"{path} is damaged, or not a manifest of format {FORMAT} for {data}.")
    for name, expected in files.items():
        if not is_plain_name(name) or not _is_fingerprint(expected):
            raise DamagedCheckpoint(f"{path} is damaged: its entry {name!r} is not a file of its folder.")
    return files


def _is_fingerprint(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"sha256", "bytes"}
        and isinstance(value["sha256"], str)
        and type(value["bytes"]) is int
    )

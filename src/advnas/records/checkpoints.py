"""What a run leaves on disk: files written whole or not at all, checkpoints, and journals that survive a crash."""

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from advnas.records.files import clear_drafts, write_atomically


class DamagedCheckpoint(ValueError):
    """The file is not what was written."""


def save_checkpoint(path: Path | str, state: Mapping[str, Any]) -> None:
    """Write tensors, numbers, texts and containers of them: a line with a checksum, then what torch.save makes."""
    import torch  # here, so that journals and texts can be read without it

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    content = buffer.getvalue()
    write_atomically(Path(path), hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; nothing in the file can execute code."""
    import torch

    checksum, _, content = Path(path).read_bytes().partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        raise DamagedCheckpoint(f"{path} is damaged: its checksum does not fit its content. Remove it.")
    try:
        state = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # of many kinds; what torch says is how to read the file all the same, code and all
        raise DamagedCheckpoint(
            f"{path} is damaged, or no checkpoint: torch cannot read it ({type(error).__name__}). Remove it."
        ) from error
    if not isinstance(state, dict):
        raise DamagedCheckpoint(f"{path} is no checkpoint: it holds a {type(state).__name__}. Remove it.")
    return state


GoOn = Callable[[dict[str, Any]], object]
"""Takes a state over whole, or raises ValueError and changes nothing."""


def enter_checkpoint(path: Path, go_on: GoOn) -> None:
    """Go on from one file; an error names it."""
    _hand_over(path, load_checkpoint(path), go_on)


def _hand_over(path: Path, state: dict[str, Any], go_on: GoOn) -> None:
    try:
        go_on(state)
    except DamagedCheckpoint:
        raise
    except ValueError as error:
        raise ValueError(
            f"{path} was saved by something else than what is to go on from it: {error}. Nothing was changed. "
            "Go on with the model, the data and the settings that it was saved with, or give another folder."
        ) from error


class Checkpoints:
    """The last two states of a run. A damaged newest one costs the steps since the one before, not the run."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Keep a state; the number orders it."""
        save_checkpoint(self.folder / f"checkpoint-{step:09d}.pt", state)
        for old in self._paths()[:-2]:
            old.unlink()

    def resume(self, go_on: GoOn) -> bool:
        """Go on from the newest state that is whole; False if nothing was saved. An error names the file.

        go_on may raise DamagedCheckpoint too: where a state refers to further files, only it can tell.
        """
        resumed = self._try(go_on)
        clear_drafts(self.folder)
        return resumed

    def clear(self) -> None:
        """The run is over; its result stands elsewhere."""
        for path in self._paths():
            path.unlink()

    def _try(self, go_on: GoOn) -> bool:
        """Go on from the newest one that is whole; to start over where none is would be to lose the run."""
        damaged: list[DamagedCheckpoint] = []
        for path in reversed(self._paths()):
            try:
                enter_checkpoint(path, go_on)
            except DamagedCheckpoint as error:
                damaged.append(error)
                continue
            for problem in damaged:
                warnings.warn(f"{problem} Going on from an earlier one.", stacklevel=4)
            return True
        if damaged:
            raise DamagedCheckpoint(
                f"No checkpoint in {self.folder} can be read: {' '.join(map(str, damaged))} Without them the run "
                "starts over."
            )
        return False

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.pt"))

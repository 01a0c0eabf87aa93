"""What a run leaves on disk: files written whole or not at all, checkpoints, and journals that survive a crash."""

import hashlib
import io
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def clear_drafts(folder: Path) -> None:
    """Take away what processes that were killed had begun to write; nobody may be writing there now."""
    for draft in folder.glob(".*.draft"):
        draft.unlink()


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


class Journal:
    """Append-only JSON lines. A process that dies while writing costs at most the line it was writing."""

    def __init__(self, path: Path | str, *, keep: int | None = None) -> None:
        """keep: how many of the lines that are there, where a run goes on from before its last ones."""
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._cut(keep)
        self._file = self.path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Wait until the lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def _cut(self, keep: int | None) -> None:
        """Take away a torn last line, and the lines that are too many."""
        if self.path.exists():
            whole = self.path.read_bytes().split(b"\n")[:-1][:keep]
            os.truncate(self.path, sum(len(line) + 1 for line in whole))


class StopSignals:
    """While this is open, Ctrl-C and SIGTERM ask to stop instead of stopping: whoever works can save first.

    A second Ctrl-C interrupts at once. Python lets only the main thread listen; elsewhere nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: object) -> None:
        # Ctrl-C reaches every process of a terminal, and one of them may tell the others again.
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


def read_journal(path: Path | str) -> Iterator[dict[str, Any]]:
    """All whole lines of a journal, oldest first; a torn last line is left out."""
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], start=1):
        yield parse_json(line, f"{path}, line {number}")


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """A JSON object, or an error that says where it was to be found."""
    start = content[:80].decode(errors="replace")
    try:
        parsed = json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, too many digits, too many brackets
        raise ValueError(f"{where} is not JSON: {start!r} ({error}).") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{where} must hold a JSON object, it holds a {type(parsed).__name__}: {start!r}.")
    return parsed

"""What a run leaves on disk: files written whole or not at all, checkpoints, and journals that survive a crash."""

import hashlib
import io
import json
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class DamagedCheckpoint(ValueError):
    """The file is not what was written."""


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors, numbers, texts and containers of them: a line with a checksum, then what torch.save makes."""
    import torch  # here, so that journals and texts can be read without it

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    content = buffer.getvalue()
    write_atomically(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; nothing in the file can execute code."""
    import torch

    checksum, _, content = path.read_bytes().partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        raise DamagedCheckpoint(f"{path} is damaged: its checksum does not fit its content. Remove it.")
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return state


class Checkpoints:
    """The last two states of a run. A damaged newest one costs the steps since the one before, not the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Keep a state; the number orders it."""
        save_checkpoint(self.folder / f"checkpoint-{step:09d}.pt", state)
        for old in self._paths()[:-2]:
            old.unlink()

    def latest(self) -> dict[str, Any] | None:
        """The newest state that is whole, if there is any."""
        return next(self.newest_first(), None)

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """All states that are whole."""
        for path in reversed(self._paths()):
            try:
                yield load_checkpoint(path)
            except DamagedCheckpoint as error:
                warnings.warn(f"{error} Going on from an earlier one.", stacklevel=2)

    def clear(self) -> None:
        """The run is over; its result stands elsewhere."""
        for path in self._paths():
            path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.pt"))


class Journal:
    """Append-only JSON lines. A process that dies while writing costs at most the line it was writing."""

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        """keep: how many of the lines that are there, where a run goes on from before its last ones."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._cut(keep)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def _cut(self, keep: int | None) -> None:
        """Take away a torn last line, and the lines that are too many."""
        if self.path.exists():
            lines = self.path.read_bytes().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")][:keep]
            os.truncate(self.path, sum(map(len, whole)))


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
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of a journal, oldest first; a torn last line is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {line[:80]!r}.") from error

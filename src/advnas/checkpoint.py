"""What a run leaves on disk: files written whole or not at all, and journals that survive a torn last line."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old text or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class Journal:
    """Append-only JSON lines. A process that dies while writing costs at most the line it was writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._cut_torn_line()
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def _cut_torn_line(self) -> None:
        if self.path.exists():
            whole = self.path.read_bytes().rpartition(b"\n")
            if whole[2]:
                os.truncate(self.path, len(whole[0]) + len(whole[1]))


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of a journal, oldest first; a torn last line is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {line[:80]!r}.") from error

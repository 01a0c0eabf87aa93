"""Append-only records that survive a crash."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advnas.records.files import parse_json


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


def read_journal(path: Path | str) -> Iterator[dict[str, Any]]:
    """All whole lines of a journal, oldest first; a torn last line is left out."""
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], start=1):
        yield parse_json(line, f"{path}, line {number}")

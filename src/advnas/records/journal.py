"""Append-only records that survive a crash."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advnas.records.files import parse_json


class Journal:
    """Append-only JSON lines. A process that dies while writing costs at most the line it was writing.

    Args:
        path: The file. A torn last line is cut off.
        keep: How many of the lines that are there stay, for a run that resumes from before its last ones. All by
            default.

    Attributes:
        lines: How many lines the file has.
    """

    def __init__(self, path: Path | str, *, keep: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = _truncate(self.path, keep)
        self._file = self.path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and pass it to the operating system."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()
        self.lines += 1

    def sync(self) -> None:
        """Wait until the lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path | str) -> Iterator[dict[str, Any]]:
    """Read all complete lines of a journal, oldest first; a torn last line is left out.

    Args:
        path: The file.

    Yields:
        A record per line.

    Raises:
        ValueError: A line is no JSON object; the message gives its number.
    """
    for number, line in enumerate(_complete_lines(Path(path)), start=1):
        yield parse_json(line.removesuffix(b"\n"), f"{path}, line {number}")


def _complete_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def _truncate(path: Path, keep: int | None) -> int:
    """Cut off a torn last line and the lines that are too many; how many stay."""
    if not path.exists():
        return 0
    sizes = [len(line) for line in _complete_lines(path)][:keep]
    os.truncate(path, sum(sizes))
    return len(sizes)

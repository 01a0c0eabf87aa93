"""Append-only records that survive a crash."""

import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from advnas.records.files import CannotWrite, naming, parse_json


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
        self._hash = hashlib.sha256()
        self.lines = self._truncate(keep)
        self._file = self.path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and pass it to the operating system."""
        line = json.dumps(record, separators=(",", ":")) + "\n"
        with naming(self.path):
            self._file.write(line)
            self._file.flush()
        self._hash.update(line.encode())
        self.lines += 1

    @property
    def sha256(self) -> str:
        """Of all lines."""
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Wait until the lines are on the disk, in the file of this name."""
        if not self._is_named():
            raise CannotWrite(
                f"{self.path} was removed while the run was writing it. Put {self.path.parent} back and resume, or "
                "start again in another folder."
            )
        with naming(self.path):
            os.fsync(self._file.fileno())

    def _is_named(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def tell_damage(self, lines: int, sha256: str | None = None) -> None:
        """Warn if the file is not what a checkpoint knows of it: the run is whole, but reports of it are not.

        Args:
            lines: How many were written.
            sha256: Of these lines, where that is known.
        """
        if self.lines >= lines and sha256 in (None, self.sha256):
            return
        short = f"has {self.lines} of the {lines} lines that were written"
        what = short if self.lines < lines else "was changed since it was written"
        warnings.warn(
            f"{self.path} {what}. The run goes on from its checkpoint; for right reports of it, stop it "
            "and restore the file from a copy.",
            stacklevel=5,
        )

    def close(self) -> None:
        """Close the file. What could not be written was told before."""
        with suppress(OSError):
            self._file.close()

    def _truncate(self, keep: int | None) -> int:
        """Cut off a torn last line and the lines that are too many; how many stay."""
        if not self.path.exists():
            return 0
        size = count = 0
        for line in itertools.islice(_complete_lines(self.path), keep):
            self._hash.update(line)
            size, count = size + len(line), count + 1
        os.truncate(self.path, size)
        return count


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

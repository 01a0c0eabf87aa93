"""Files that are written completely or not at all, and JSON that is checked when it is read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


class CannotWrite(OSError):
    """A file of a run cannot be written. The message says which, why, and how to go on."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError the name of the file it is about; those of an open file do not know it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a new version of a file under a temporary name, which becomes the file's when the block ends.

    A reader, or a crash, sees the old content or the new one, never a part. If the block raises, the temporary file
    is deleted and the old one stays.

    Args:
        path: The file. Missing folders are made.

    Yields:
        The temporary file, open for writing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new one, never a part."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def delete_temporary_files(folder: Path) -> None:
    """Delete temporary files left by killed writers. Nobody may be writing in the folder."""
    for temporary in folder.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)  # the processes of a group all do this


def is_plain_name(name: object) -> bool:
    """Tell whether a value that was read is the name of a file in the folder at hand, and of nothing elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        content: The text.
        where: Where the text was found, for the error.

    Returns:
        The object.

    Raises:
        ValueError: The content is not JSON, or no object.
    """
    start = content[:80].decode(errors="replace")
    try:
        parsed = json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, too many digits, too many brackets
        raise ValueError(f"{where} is not JSON: {start!r} ({error}).") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{where} must hold a JSON object, it holds a {type(parsed).__name__}: {start!r}.")
    return parsed


def _sync_folder(folder: Path) -> None:
    """Make sure that a new name is on the disk, not just the content of its file."""
    if os.name != "posix":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""One process at a time owns a run folder."""

import errno
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from advnas.records.files import CannotWrite

if sys.platform != "win32":
    import fcntl

_PATIENCE = 1.0  # seconds; the children of a process that was killed notice its death within half a second
_POLL = 0.05  # seconds
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)

_held: set[int] = set()  # descriptors


class FolderInUse(ValueError):
    """Another process owns the folder."""


@contextmanager
def lock(folder: Path | str) -> Iterator[None]:
    """Own a folder while the block runs: nobody else can enter such a block for it, this process neither.

    The kernel releases the lock when the process dies, however that happens. The file `lock` in the folder says who
    owns it, and is removed at the end. On Windows, which has no such locks, nothing is locked.

    Args:
        folder: The folder; it is made if it is missing.

    Raises:
        FolderInUse: Somebody else owns it. The message says who; nothing was changed.
    """
    if sys.platform == "win32":
        yield
        return
    path = Path(folder) / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path)
    except OSError as error:
        raise CannotWrite(f"{folder} cannot be used: {error.strerror}. Give another folder.") from error
    _held.add(descriptor)
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_owner()).encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # while the lock is held: who opened this file before must look again
        _held.discard(descriptor)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """Lock the file that has this name; it may be another one than a moment ago, as owners remove it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if _try_to_lock(descriptor, path):
            if _is_named(descriptor, path):
                return descriptor
        elif time.monotonic() > deadline:
            message = _in_use(path, os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise FolderInUse(message)
        else:
            time.sleep(_POLL)
        os.close(descriptor)


def _try_to_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warnings.warn(
            f"The file system of {path.parent} has no locks ({error.strerror}). Take care that no second process "
            "uses the folder.",
            stacklevel=5,
        )
    return True


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner() -> dict[str, object]:
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


def _in_use(path: Path, content: bytes) -> str:
    """The message; an owner that has just come may not have written who it is."""
    try:
        owner = json.loads(content)
        who = f"process {owner['process']} on host {owner['host']} since {owner['since']}"
        ours = (owner["process"], owner["host"]) == (os.getpid(), socket.gethostname())
    except (ValueError, KeyError, TypeError):
        who, ours = "another process", False
    return (
        f"{path.parent} is in use by {'this process, ' if ours else ''}{who}; wait for it or give another folder. "
        "Nothing was changed."
    )


def _close_inherited() -> None:
    """A child of a fork does not own its parent's folders: they must be free when the parent ends."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_inherited)

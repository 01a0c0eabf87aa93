"""Files that are written whole or not at all, and JSON that is checked when it is read."""

import json
import os
from pathlib import Path
from typing import Any


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

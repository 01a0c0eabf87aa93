"""Results that a benchmark keeps as files, so that it resumes where it was stopped."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from advnas.records.files import parse_json, write_atomically

Result = dict[str, Any]


def kept(path: Path, measure: Callable[[], Result]) -> Result:
    """Read what an earlier call has left at a path; where there is nothing, measure it and write it there."""
    if not path.exists():
        write_atomically(path, json.dumps(measure(), indent=1))
        print(f"measured {path}", file=sys.stderr, flush=True)
    return read(path)


def read(path: Path) -> Result:
    """Read one result."""
    result: Result = parse_json(path.read_bytes(), str(path))
    return result


def read_all(paths: Iterable[Path]) -> list[Result]:
    """Read results in the order of their names."""
    return [read(path) for path in sorted(paths)]

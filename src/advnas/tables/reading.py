"""What all tables of known results share: reading their file, and checking that it is whole."""

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from advnas.records.bounds import unpacked

_LARGEST_TABLE = 2**26  # bytes
_COSTS = ("params", "flops")  # columns that are no accuracies

Rows = tuple[tuple[str, ...], NDArray[np.float64]]
"""Names of the architectures, and [architectures, columns] numbers."""


def find_file(folder: Path, names: Sequence[str], advice: str) -> Path:
    """The first of these files that a folder of data has; the advice says how else to get one."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"There is no {' or '.join(names)} in {folder}. Name the folder that has one, or {advice}."
    )


def told_of(path: Path, error: ValueError) -> ValueError:
    """The error with the name of the file it is about, once."""
    return error if str(error).startswith(str(path)) else ValueError(f"{path}: {error}")


def read_rows(path: Path, columns: Sequence[str], title: str) -> Rows:
    """Read a .csv or .csv.gz file: the names in the column `arch`, the numbers of all others."""
    header, lines = ",".join(["arch", *columns]), read_text(path).splitlines()
    if lines[:1] != [header]:
        begin = lines[0][:120] if lines else ""
        raise ValueError(f"{path} begins with {begin!r}; a {title} table begins with {header!r}.")
    rows = [_parse_line(line, number, len(columns)) for number, line in enumerate(lines[1:], start=2)]
    return tuple(name for name, _ in rows), np.array([numbers for _, numbers in rows], dtype=np.float64)


def read_text(path: Path) -> str:
    """The text of a file, unpacked if its name ends in .gz."""
    try:
        return unpacked(path, _LARGEST_TABLE).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text ({error}). A gzipped table must have a name that ends in .gz."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise ValueError(f"{path} is not a whole table ({error}). Get it again.") from error


def check_names(rows: Mapping[str, int], names: Sequence[str], all_names: Sequence[str], noun: str) -> None:
    """Raise unless every architecture has exactly one row. rows: the last row of each name."""
    if len(rows) != len(names):
        again = next(name for row, name in enumerate(names) if rows[name] != row)
        raise ValueError(f"the {noun} {again} occurs {names.count(again)} times; every {noun} has one row.")
    missing = [name for name in all_names if name not in rows]
    if missing:
        raise ValueError(
            f"{len(missing):,} of the {len(all_names):,} {noun}s are missing, the first is {missing[0]}. "
            "Get the whole table again."
        )


def check_values(names: Sequence[str], values: NDArray[np.float64], columns: Sequence[str], noun: str) -> None:
    """Raise unless there is a finite number in range for every architecture and column."""
    shape = (len(names), len(columns))
    if values.shape != shape:
        raise ValueError(f"values of shape {values.shape} do not fit the {noun}s and columns, which make {shape}.")
    most = np.array([np.inf if column in _COSTS else 100.0 for column in columns])  # accuracies are in percent
    holes = np.argwhere(~np.isfinite(values) | (values < 0) | (values > most))
    if len(holes):
        row, column = holes[0]
        raise ValueError(
            f"the {noun} {names[row]} has {values[row, column]} for {columns[column]}, where a number "
            f"from 0{'' if columns[column] in _COSTS else ' to 100'} belongs."
        )


def check_known(names: Sequence[str], known: frozenset[str], parse: Callable[[str], object]) -> None:
    """Let `parse` say what is wrong with a name that is not known."""
    for name in names:
        if name not in known:
            parse(name)


def rank(accuracies: NDArray[np.float64], row: int) -> int:
    """1 for the best; architectures with the same accuracy share the best of their ranks."""
    return 1 + int(np.count_nonzero(accuracies > accuracies[row]))


def percentile(accuracies: NDArray[np.float64], row: int) -> float:
    """Percent of all architectures that are strictly worse."""
    return 100 * int(np.count_nonzero(accuracies < accuracies[row])) / len(accuracies)


def regret(accuracies: NDArray[np.float64], row: int) -> float:
    """Percentage points between the best architecture and this one."""
    return float(accuracies.max()) - float(accuracies[row])


def _parse_line(line: str, number: int, columns: int) -> tuple[str, list[float]]:
    name, *fields = line.split(",")
    if len(fields) != columns:
        raise ValueError(f"line {number} does not have {columns + 1} fields: {line[:120]!r}.")
    return name, [_parse_number(text, number) for text in fields]


def _parse_number(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"line {line} has {text!r} where a number belongs.") from None

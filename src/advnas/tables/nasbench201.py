"""NAS-Bench-201: the strings that name its cells, and the table of what all 15,625 of them reach.

Two cells that compute the same function (one edge moved past a `none`, say) are two rows here, as they are in
the benchmark, which trained each of them; merging them is not the business of this table.
"""

import gzip
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from advnas.arguments import did_you_mean
from advnas.records.files import write_atomically

if TYPE_CHECKING:
    from advnas.architecture import Architecture

NODES = 4
EDGES = tuple(f"{source}->{target}" for target in range(1, NODES) for source in range(target))
"""The decisions of a cell, in the order of its string: 0->1, 0->2, 1->2, 0->3, 1->3, 2->3."""
OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
DATASETS = ("cifar10", "cifar100", "imagenet16")
SPLITS = ("test", "valid")

DECIMALS: Mapping[str, int] = {f"{dataset}_{split}": 4 for dataset in DATASETS for split in SPLITS} | {
    "params": 6,
    "flops": 5,
}
"""The columns of the table, and to how many digits its file writes them."""

_COLUMN = {name: place for place, name in enumerate(DECIMALS)}
_HEADER = ",".join(["arch", *DECIMALS])
_FILES = ("nasbench201.csv.gz", "nasbench201.csv")
_EXAMPLE = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|"


def to_string(architecture: Mapping[str, str]) -> str:
    """The benchmark's name of a cell, e.g. '|none~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|'."""
    with _told_of(architecture):
        for decision in architecture:
            if decision not in EDGES:
                raise ValueError(f"there is no edge {decision!r}, only {', '.join(EDGES)}")
        for edge in EDGES:
            if edge not in architecture:
                raise ValueError(f"the edge {edge} has no operation")
            _check_operation(architecture[edge], edge)
    return _join([architecture[edge] for edge in EDGES])


def from_string(text: str) -> "Architecture":
    """Read what `to_string` wrote; an error points at the node or edge that is wrong."""
    # Torch comes with Architecture and takes a second to import; looking a cell up does without.
    from advnas.architecture import Architecture

    return Architecture(dict(zip(EDGES, _operations(text), strict=True)))


@cache
def all_cells() -> tuple[str, ...]:
    """The strings of all 15,625 cells, counting through `OPERATIONS` with the last edge fastest."""
    return tuple(_join(operations) for operations in itertools.product(OPERATIONS, repeat=len(EDGES)))


@dataclass(frozen=True)
class Entry:
    """What the table knows of one cell. accuracy[dataset][split] in percent; params and flops in millions."""

    cell: str
    accuracy: dict[str, dict[str, float]]
    params: float
    flops: float


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """All 15,625 cells after 200 epochs, mean over seeds.

    cells: their strings, in the order of the file.
    values: [cells, columns], the columns being those of `DECIMALS`.
    """

    cells: tuple[str, ...]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        _check_cells(self.cells, self._rows)
        _check_values(self.cells, self.values)
        self.values.setflags(write=False)

    def entry(self, cell: str | Mapping[str, str]) -> Entry:
        """Everything about one cell, given as its string or as an architecture."""
        row = self.values[self._row(cell)].tolist()
        return Entry(
            cell=self.cells[self._row(cell)],
            accuracy={
                dataset: {split: row[_COLUMN[f"{dataset}_{split}"]] for split in SPLITS} for dataset in DATASETS
            },
            params=row[_COLUMN["params"]],
            flops=row[_COLUMN["flops"]],
        )

    def accuracy(self, cell: str | Mapping[str, str], dataset: str = "cifar10", split: str = "test") -> float:
        """Percent of images classified rightly."""
        return float(self._accuracies(dataset, split)[self._row(cell)])

    def rank(self, cell: str | Mapping[str, str], dataset: str = "cifar10", split: str = "test") -> int:
        """1 for the best; cells with the same accuracy share the best of their ranks."""
        better = self._accuracies(dataset, split) > self.accuracy(cell, dataset, split)
        return 1 + int(np.count_nonzero(better))

    def percentile(self, cell: str | Mapping[str, str], dataset: str = "cifar10", split: str = "test") -> float:
        """Percent of all cells that are strictly worse."""
        worse = self._accuracies(dataset, split) < self.accuracy(cell, dataset, split)
        return 100 * int(np.count_nonzero(worse)) / len(self.cells)

    def best(self, dataset: str = "cifar10", split: str = "test") -> Entry:
        """The cell of highest accuracy, the first in the table if there are several."""
        return self.entry(self.cells[int(self._accuracies(dataset, split).argmax())])

    def regret(self, cell: str | Mapping[str, str], dataset: str = "cifar10", split: str = "test") -> float:
        """Percentage points between the best cell and this one."""
        return float(self._accuracies(dataset, split).max()) - self.accuracy(cell, dataset, split)

    def save(self, path: Path) -> None:
        """Write the table as CSV, gzipped if the name ends in .gz; whole or not at all, always the same bytes."""
        rows = zip(self.cells, self.values.tolist(), strict=True)
        lines = [_HEADER, *(f"{cell},{_format(row)}" for cell, row in rows), ""]
        content = "\n".join(lines).encode()
        # mtime=0: by default gzip would write the time of day into the file.
        write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)

    def __len__(self) -> int:
        return len(self.cells)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.cells == other.cells and np.array_equal(self.values, other.values)

    def __repr__(self) -> str:
        return f"<NAS-Bench-201 table of {len(self):,} cells>"

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {cell: row for row, cell in enumerate(self.cells)}

    def _row(self, cell: str | Mapping[str, str]) -> int:
        name = to_string(cell) if isinstance(cell, Mapping) else cell
        if not isinstance(name, str) or name not in self._rows:
            _operations(name)  # says what is wrong with it
        return self._rows[name]

    def _accuracies(self, dataset: str, split: str) -> NDArray[np.float64]:
        for kind, word, known in (("dataset", dataset, DATASETS), ("split", split, SPLITS)):
            if word not in known:
                meant = did_you_mean(word, known)
                raise ValueError(f"NAS-Bench-201 has no {kind} {word!r}{meant}. Choose one of {', '.join(known)}.")
        return self.values[:, _COLUMN[f"{dataset}_{split}"]]


def find(folder: Path) -> Path:
    """The table's file in a folder of data."""
    for name in _FILES:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"There is no {' or '.join(_FILES)} in {folder}. Name the folder that has one, or make one from the "
        f"official files: advnas.tables.nasbench201_import.import_nats(folder).save(Path({_FILES[0]!r}))."
    )


def load(path: Path) -> Table:
    """Read the table from a .csv or .csv.gz file."""
    lines = _read(path).splitlines()
    if lines[:1] != [_HEADER]:
        begin = lines[0][:120] if lines else ""
        raise ValueError(f"{path} begins with {begin!r}; a NAS-Bench-201 table begins with {_HEADER!r}.")
    try:
        rows = [_parse_line(line, number) for number, line in enumerate(lines[1:], start=2)]
        values = np.array([numbers for _, numbers in rows], dtype=np.float64)
        return Table(tuple(cell for cell, _ in rows), values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def query(table: Table, cell: str | Mapping[str, str], dataset: str | None = None) -> dict[str, Any]:
    """One cell as a JSON-ready object: its costs, and accuracy, rank and percentile on every dataset, or on one."""
    entry = table.entry(cell)
    datasets = DATASETS if dataset is None else (dataset,)
    return {
        "cell": entry.cell,
        "params": entry.params,
        "flops": entry.flops,
        "datasets": {name: _standing(table, entry.cell, name) for name in datasets},
    }


def _standing(table: Table, cell: str, dataset: str) -> dict[str, float]:
    return (
        {split: table.accuracy(cell, dataset, split) for split in SPLITS}
        | {f"rank_{split}": table.rank(cell, dataset, split) for split in SPLITS}
        | {f"percentile_{split}": table.percentile(cell, dataset, split) for split in SPLITS}
    )


def _join(operations: Sequence[str]) -> str:
    inputs = iter(operations)
    nodes = ("".join(f"|{next(inputs)}~{source}" for source in range(target)) + "|" for target in range(1, NODES))
    return "+".join(nodes)


@contextmanager
def _told_of(cell: str | Mapping[str, str]) -> Iterator[None]:
    """Add to an error, once, which cell it is about and what a right one looks like."""
    try:
        yield
    except ValueError as error:
        example = _EXAMPLE if isinstance(cell, str) else dict(zip(EDGES, _parse(_EXAMPLE), strict=True))
        raise ValueError(f"{cell!r} is not a NAS-Bench-201 cell: {error}. A right one: {example!r}.") from None


def _operations(text: str) -> list[str]:
    if not isinstance(text, str):
        raise TypeError(f"A cell is a string or an architecture, got {text!r}. Write for example {_EXAMPLE!r}.")
    with _told_of(text):
        return _parse(text)


def _parse(text: str) -> list[str]:
    nodes = text.split("+")
    operations = [_parse_node(node, target) for node, target in zip(nodes, range(1, NODES), strict=False)]
    if len(nodes) < NODES - 1:
        raise ValueError(f"node {len(nodes) + 1} is missing")
    if len(nodes) > NODES - 1:
        raise ValueError(f"{nodes[NODES - 1]!r} is one node too many, node {NODES - 1} is the last")
    return list(itertools.chain.from_iterable(operations))


def _parse_node(node: str, target: int) -> list[str]:
    if len(node) < 2 or not (node.startswith("|") and node.endswith("|")):
        raise ValueError(f"node {target}, {node!r}, must begin and end with a bar '|'")
    inputs = node[1:-1].split("|")
    if len(inputs) < target:
        raise ValueError(f"node {target}, {node!r}, lacks the edge {len(inputs)}->{target}")
    if len(inputs) > target:
        raise ValueError(
            f"node {target}, {node!r}, has {inputs[target]!r} after its last edge {target - 1}->{target}"
        )
    return [_parse_edge(edge, source, target) for source, edge in enumerate(inputs)]


def _parse_edge(edge: str, source: int, target: int) -> str:
    operation, tilde, named = edge.partition("~")
    name = f"{source}->{target}"
    if not tilde:
        raise ValueError(f"the edge {name}, {edge!r}, does not say its source; write '{operation}~{source}'")
    if named != str(source):
        raise ValueError(f"the edge {name}, {edge!r}, names the source {named!r}; write '{operation}~{source}'")
    _check_operation(operation, name)
    return operation


def _check_operation(operation: str, edge: str) -> None:
    if operation not in OPERATIONS:
        raise ValueError(
            f"the edge {edge} has the unknown operation {operation!r}{did_you_mean(operation, OPERATIONS)}; "
            f"the operations are {', '.join(OPERATIONS)}"
        )


@cache
def _known_cells() -> frozenset[str]:
    return frozenset(all_cells())


def _check_cells(cells: tuple[str, ...], rows: Mapping[str, int]) -> None:
    for cell in cells:
        if cell not in _known_cells():
            _operations(cell)  # says what is wrong with it
    if len(rows) != len(cells):
        again = next(cell for row, cell in enumerate(cells) if rows[cell] != row)
        raise ValueError(f"the cell {again} occurs {cells.count(again)} times; every cell has one row.")
    missing = [cell for cell in all_cells() if cell not in rows]
    if missing:
        raise ValueError(
            f"{len(missing):,} of the {len(all_cells()):,} cells are missing, the first is {missing[0]}. "
            "Get the whole table again."
        )


def _check_values(cells: tuple[str, ...], values: NDArray[np.float64]) -> None:
    shape = (len(cells), len(DECIMALS))
    if values.shape != shape:
        raise ValueError(f"values of shape {values.shape} do not fit the cells and columns, which make {shape}.")
    holes = np.argwhere(~np.isfinite(values))
    if len(holes):
        row, column = holes[0]
        raise ValueError(
            f"the cell {cells[row]} has {values[row, column]} for {list(DECIMALS)[column]}, where a number belongs."
        )


def _read(path: Path) -> str:
    content = path.read_bytes()
    try:
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}). Get it again.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text ({error}). A gzipped table must have a name that ends in .gz."
        ) from error


def _parse_line(line: str, number: int) -> tuple[str, list[float]]:
    cell, *fields = line.split(",")
    if len(fields) != len(DECIMALS):
        raise ValueError(f"line {number} does not have {len(DECIMALS) + 1} fields: {line[:120]!r}.")
    return cell, [_parse_number(text, number) for text in fields]


def _parse_number(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"line {line} has {text!r} where a number belongs.") from None


def _format(row: Sequence[float]) -> str:
    return ",".join(_digits(number, decimals) for number, decimals in zip(row, DECIMALS.values(), strict=True))


def _digits(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return text if float(text) == number else repr(number)

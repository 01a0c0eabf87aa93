"""NAS-Bench-201: the strings that name its cells, and the table of what all 15,625 of them reach.

Two cells that compute the same function (one edge moved past a `none`, say) are two rows here, as they are in
the benchmark, which trained each of them; merging them is not the business of this table.
"""

import gzip
import itertools
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
from advnas.tables import reading

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
        reading.check_known(self.cells, _known_cells(), _operations)
        reading.check_names(self._rows, self.cells, all_cells(), "cell")
        reading.check_values(self.cells, self.values, list(DECIMALS), "cell")
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
        return reading.rank(self._accuracies(dataset, split), self._row(cell))

    def percentile(self, cell: str | Mapping[str, str], dataset: str = "cifar10", split: str = "test") -> float:
        """Percent of all cells that are strictly worse."""
        return reading.percentile(self._accuracies(dataset, split), self._row(cell))

    def best(self, dataset: str = "cifar10", split: str = "test") -> Entry:
        """The cell of highest accuracy, the first in the table if there are several."""
        return self.entry(self.cells[int(self._accuracies(dataset, split).argmax())])

    def regret(self, cell: str | Mapping[str, str], dataset: str = "cifar10", split: str = "test") -> float:
        """Percentage points between the best cell and this one."""
        return reading.regret(self._accuracies(dataset, split), self._row(cell))

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
    official = f"advnas.tables.nasbench201_import.import_nats(folder).save(Path({_FILES[0]!r}))"
    return reading.find_file(folder, _FILES, f"make one from the official files: {official}")


def load(path: Path) -> Table:
    """Read the table from a .csv or .csv.gz file."""
    try:
        return Table(*reading.read_rows(path, list(DECIMALS), "NAS-Bench-201"))
    except ValueError as error:
        raise reading.told_of(path, error) from error


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


def _format(row: Sequence[float]) -> str:
    return ",".join(_digits(number, decimals) for number, decimals in zip(row, DECIMALS.values(), strict=True))


def _digits(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return text if float(text) == number else repr(number)

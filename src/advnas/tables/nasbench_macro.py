"""NAS-Bench-Macro: the digits that name its networks, and the table of what all 6,561 of them reach.

Networks that compute the same function (an identity before or behind another layer of the same stage) are rows of
their own, as they are in the benchmark.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from advnas.arguments import did_you_mean
from advnas.tables import reading

if TYPE_CHECKING:
    from advnas.architecture import Architecture

LAYERS = tuple(f"layer {number}" for number in range(8))
"""The decisions of a network, in the order of its digits."""
OPERATIONS = ("identity", "bottleneck_3x3_e3", "bottleneck_5x5_e6")
"""In the order of the digits 0, 1 and 2."""
TRAININGS = ("test_1", "test_2", "test_3")
COLUMNS = (*TRAININGS, "params", "flops")

_FILES = ("nasbench_macro.csv.gz", "nasbench_macro.csv")
_EXAMPLE = "22212220"


def to_string(architecture: Mapping[str, str]) -> str:
    """The benchmark's name of a network: one digit per layer, e.g. '22212220'."""
    for decision in architecture:
        if decision not in LAYERS:
            raise _no_network(dict(architecture), f"there is no {decision!r}, only {', '.join(LAYERS)}")
    for layer in LAYERS:
        if layer not in architecture:
            raise _no_network(dict(architecture), f"{layer} has no operation")
        if architecture[layer] not in OPERATIONS:
            raise _no_network(dict(architecture), _unknown(architecture[layer], layer))
    return "".join(str(OPERATIONS.index(architecture[layer])) for layer in LAYERS)


def from_string(text: str) -> "Architecture":
    """Read what `to_string` wrote; an error points at the digit that is wrong."""
    # Torch comes with Architecture and takes a second to import; looking a network up does without.
    from advnas.architecture import Architecture

    return Architecture(_operations(text))


@cache
def all_networks() -> tuple[str, ...]:
    """The digits of all 6,561 networks, the last layer fastest."""
    return tuple("".join(digits) for digits in itertools.product("012", repeat=len(LAYERS)))


@dataclass(frozen=True)
class Entry:
    """What the table knows of one network.

    accuracy: mean of the trainings, in percent. trainings: each of them. params, flops: in millions; flops are the
    multiply-adds of convolutions and classifier, without norms and biases, for an image of 32 x 32.
    """

    network: str
    accuracy: float
    trainings: tuple[float, ...]
    params: float
    flops: float


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """All 6,561 networks on CIFAR-10 after 50 epochs, three trainings each.

    networks: their digits, in the order of the file. values: [networks, columns], the columns being `COLUMNS`.
    """

    networks: tuple[str, ...]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        reading.check_known(self.networks, frozenset(all_networks()), _operations)
        reading.check_names(self._rows, self.networks, all_networks(), "network")
        reading.check_values(self.networks, self.values, COLUMNS, "network")
        self.values.setflags(write=False)

    def entry(self, network: str | Mapping[str, str]) -> Entry:
        """Everything about one network, given as its digits or as an architecture."""
        row = self._row(network)
        *trainings, params, flops = self.values[row].tolist()
        accuracy = float(self._accuracies[row])
        return Entry(self.networks[row], accuracy, tuple(trainings), params / 1e6, flops / 1e6)

    def accuracy(self, network: str | Mapping[str, str]) -> float:
        """Percent of the test images classified rightly, mean of the three trainings."""
        return float(self._accuracies[self._row(network)])

    def rank(self, network: str | Mapping[str, str]) -> int:
        """1 for the best; networks with the same accuracy share the best of their ranks."""
        return reading.rank(self._accuracies, self._row(network))

    def percentile(self, network: str | Mapping[str, str]) -> float:
        """Percent of all networks that are strictly worse."""
        return reading.percentile(self._accuracies, self._row(network))

    def best(self) -> Entry:
        """The network of highest accuracy, the first in the table if there are several."""
        return self.entry(self.networks[int(self._accuracies.argmax())])

    def regret(self, network: str | Mapping[str, str]) -> float:
        """Percentage points between the best network and this one."""
        return reading.regret(self._accuracies, self._row(network))

    def __len__(self) -> int:
        return len(self.networks)

    def __repr__(self) -> str:
        return f"<NAS-Bench-Macro table of {len(self):,} networks>"

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {network: row for row, network in enumerate(self.networks)}

    @cached_property
    def _accuracies(self) -> NDArray[np.float64]:
        # Rounded: the same accuracies in another order must stay a tie.
        means: NDArray[np.float64] = self.values[:, : len(TRAININGS)].mean(axis=1).round(12)
        return means

    def _row(self, network: str | Mapping[str, str]) -> int:
        name = to_string(network) if isinstance(network, Mapping) else network
        if not isinstance(name, str) or name not in self._rows:
            _operations(name)  # says what is wrong with it
        return self._rows[name]


def find(folder: Path) -> Path:
    """The table's file in a folder of data."""
    return reading.find_file(folder, _FILES, f"write one with the columns arch,{','.join(COLUMNS)}")


def load(path: Path) -> Table:
    """Read the table from a .csv or .csv.gz file."""
    try:
        return Table(*reading.read_rows(path, COLUMNS, "NAS-Bench-Macro"))
    except ValueError as error:
        raise reading.told_of(path, error) from error


def query(table: Table, network: str | Mapping[str, str], dataset: str | None = None) -> dict[str, Any]:
    """One network as a JSON-ready object: its costs, and its accuracy, rank and percentile on CIFAR-10."""
    if dataset not in (None, "cifar10"):
        raise ValueError(f"NAS-Bench-Macro has no dataset {dataset!r}, only cifar10. Leave --dataset out.")
    entry = table.entry(network)
    standing = {
        "test": entry.accuracy,
        "rank_test": table.rank(network),
        "percentile_test": table.percentile(network),
        "trainings": list(entry.trainings),
    }
    return {
        "cell": entry.network,
        "params": entry.params,
        "flops": entry.flops,
        "datasets": {"cifar10": standing},
    }


def _operations(text: str) -> dict[str, str]:
    if not isinstance(text, str):
        raise TypeError(f"A network is a string or an architecture, got {text!r}. Write for example {_EXAMPLE!r}.")
    if len(text) != len(LAYERS):
        raise _no_network(text, f"it has {len(text)} digits and must have {len(LAYERS)}")
    for layer, digit in zip(LAYERS, text, strict=True):
        if digit not in "012":
            raise _no_network(text, f"{layer} has {digit!r}, where 0, 1 or 2 belongs")
    return {layer: OPERATIONS[int(digit)] for layer, digit in zip(LAYERS, text, strict=True)}


def _unknown(operation: str, layer: str) -> str:
    meant = did_you_mean(operation, OPERATIONS)
    return f"{layer} has the unknown operation {operation!r}{meant}; the operations are {', '.join(OPERATIONS)}"


def _no_network(given: object, reason: str) -> ValueError:
    example = _EXAMPLE if isinstance(given, str) else _operations(_EXAMPLE)
    return ValueError(f"{given!r} is not a NAS-Bench-Macro network: {reason}. A right one: {example!r}.")

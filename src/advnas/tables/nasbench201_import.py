"""NAS-Bench-201's official files, read into a `Table` without running anything that is in them.

They are pickles, and a pickle may name any Python function for its reader to call. These readers know a handful
of harmless names and refuse a file that asks for any other.
"""

import bz2
import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

import numpy as np

from advnas.records.bounds import read_at_most
from advnas.tables.nasbench201 import DECIMALS, Table, all_cells

_SOURCES = {
    "cifar10_test": ("cifar10", "ori-test"),
    "cifar10_valid": ("cifar10-valid", "x-valid"),
    "cifar100_test": ("cifar100", "x-test"),
    "cifar100_valid": ("cifar100", "x-valid"),
    "imagenet16_test": ("ImageNet16-120", "x-test"),
    "imagenet16_valid": ("ImageNet16-120", "x-valid"),
}
"""column: (what the networks were trained on, what they were evaluated on), in the benchmark's words."""
_LAST_EPOCH = 199
_LARGEST_RECORD = 2**26  # bytes, unpacked


def import_pth(path: Path) -> Table:
    """Read NAS-Bench-201-v1_0-e61699.pth or -v1_1-096897.pth.

    The file is one object of several gigabytes, which must fit into memory as a whole. NATS-Bench's folder of
    the same cells (`import_nats`) is read one cell at a time.
    """
    content = _load_pth(path)
    try:
        records = [content["arch2infos"][index]["full"] for index in sorted(content["arch2infos"])]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{path} is not a NAS-Bench-201 file: it has no 'arch2infos' with the 'full' results of every cell. "
            "The official names are NAS-Bench-201-v1_0-e61699.pth and NAS-Bench-201-v1_1-096897.pth."
        ) from error
    return _table((_row(record, f"{path}, cell number {index}") for index, record in enumerate(records)), path)


def import_nats(folder: Path) -> Table:
    """Read NATS-Bench's topology folder NATS-tss-v1_0-3ffb9-simple: 000000.pickle.pbz2, 000001.pickle.pbz2, ..."""
    paths = [folder / f"{index:06d}.pickle.pbz2" for index in range(len(all_cells()))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(paths):,} files of NATS-Bench's topology space are missing in {folder}, "
            f"the first is {missing[0]}. Give the whole folder NATS-tss-v1_0-3ffb9-simple."
        )
    return _table(map(read_nats_record, paths), folder)


def read_nats_record(path: Path) -> tuple[str, list[float]]:
    """The cell of one NATS-Bench file, and its row of the table."""
    content = _load_nats(path)
    try:
        record = content["200"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has no results after 200 epochs, so it is not of NATS-Bench's topology space (NATS-tss)."
        ) from error
    return _row(record, str(path))


def _table(rows: Iterable[tuple[str, list[float]]], source: Path) -> Table:
    cells, values = [], []
    for cell, row in rows:
        cells.append(cell)
        values.append(row)
    try:
        return Table(tuple(cells), np.array(values, dtype=np.float64))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _row(record: Mapping[str, Any], place: str) -> tuple[str, list[float]]:
    try:
        costs = _runs(record, "cifar10")
        row = {column: _accuracy(_runs(record, dataset), on) for column, (dataset, on) in _SOURCES.items()}
        row |= {"params": fmean(run["params"] for run in costs), "flops": fmean(run["flop"] for run in costs)}
        # Rounded as in the published table: the same accuracies averaged in another order must stay a tie.
        return str(record["arch_str"]), [round(row[column], digits) for column, digits in DECIMALS.items()]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{place}: the 200-epoch results are not whole ({type(error).__name__}: {error}). Get the file again."
        ) from error


def _runs(record: Mapping[str, Any], dataset: str) -> list[Mapping[str, Any]]:
    return [record["all_results"][dataset, seed] for seed in record["dataset_seed"][dataset]]


def _accuracy(runs: Iterable[Mapping[str, Any]], evaluated_on: str) -> float:
    return fmean(run["eval_acc1es"][f"{evaluated_on}@{_LAST_EPOCH}"] for run in runs)


class _Sealed(type):
    """A class that a pickle cannot change: its BUILD instruction can set attributes of whatever it has named."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"the file sets {name!r} of {cls.__name__}")


class _NumberType(metaclass=_Sealed):
    """Stands for numpy.dtype, of which a hostile state can make numpy read foreign memory."""

    __slots__ = ("code", "order")

    def __init__(self, name: str, align: bool = False, copy: bool = False) -> None:
        self.code = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}[name]  # as struct calls it
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = {"<": "<", ">": ">"}[state[1]]


class _Number(metaclass=_Sealed):
    """Stands for numpy's scalars; makes a plain number."""

    def __new__(cls, kind: _NumberType, data: bytes) -> Any:
        return struct.unpack(kind.order + kind.code, data)[0]


class _Dict(metaclass=_Sealed):
    """Stands for defaultdict; makes a plain dict."""

    def __new__(cls, factory: object = None) -> Any:
        return {}


class _Bytes(metaclass=_Sealed):
    """Stands for codecs.encode, by which old pickles write bytes."""

    def __new__(cls, text: str, encoding: str) -> Any:
        return text.encode({"latin1": "latin1"}[encoding])


_HARMLESS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _Bytes,
    "builtins.dict": dict,
    "builtins.float": float,
    "builtins.int": int,
    "builtins.list": list,
    "builtins.set": set,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": _Dict,
    "numpy.dtype": _NumberType,
    "numpy.core.multiarray.scalar": _Number,
    "numpy._core.multiarray.scalar": _Number,
}
"""All that a pickle may name, and what it gets."""


class _Refused(pickle.UnpicklingError):
    """The file names an object that no table of numbers needs."""


class _HarmlessUnpickler(pickle._Unpickler):
    """In Python: that in C sets memory aside for as many objects as a file claims to have."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _HARMLESS[f"{module.replace('__builtin__', 'builtins')}.{name}"]  # as Python 2 called it
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def _load_nats(path: Path) -> Any:
    try:
        with bz2.open(path) as file:
            return _HarmlessUnpickler(io.BytesIO(read_at_most(file, _LARGEST_RECORD))).load()
    except FileNotFoundError:
        raise
    except _Refused as error:
        raise _refusal(path, str(error)) from error
    except Exception as error:  # bytes that are no pickle can raise anything
        raise _damage(path, error) from error


def _load_pth(path: Path) -> Any:
    """Without torch: the file has numbers and texts, and no tensors."""
    with path.open("rb") as file:
        try:
            return _unpickle_zipped(file) if zipfile.is_zipfile(file) else _unpickle_old(file)
        except _Refused as error:
            raise _refusal(path, str(error)) from error
        except Exception as error:  # bytes that are no pickle can raise anything
            raise _damage(path, error) from error


def _unpickle_zipped(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        (part,) = (part for part in archive.infolist() if part.filename.endswith("/data.pkl"))
        if part.compress_type != zipfile.ZIP_STORED:
            raise ValueError("it is compressed, which torch does not do")
        with archive.open(part) as pickled:
            return _HarmlessUnpickler(pickled).load()


def _unpickle_old(file: BinaryIO) -> Any:
    """As torch wrote before version 1.6: three pickles about the file, the content, and a list of its tensors."""
    file.seek(0)
    *_, content, _ = [_HarmlessUnpickler(file).load() for _ in range(5)]
    return content


def _refusal(path: Path, name: str) -> ValueError:
    return ValueError(
        f"{path} asks for the Python object {name}, which a table of numbers does not need and which may do harm. "
        "It was refused, nothing of the file was run. Get the file again from its official source."
    )


def _damage(path: Path, error: Exception) -> ValueError:
    reason = str(error).splitlines()[0] if str(error) else "it ends too early"
    return ValueError(f"{path} cannot be read ({type(error).__name__}: {reason}). Get it again if it is cut short.")

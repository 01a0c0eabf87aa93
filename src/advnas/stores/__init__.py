"""Weight stores: where the candidates that are not drawn are kept.

`resident`: everything stays on the compute device. `host`: candidates are in host memory, and copied to the device
when they are drawn. `disk`: candidates are in a memory-mapped file, and only what recent draws used is in memory.
A store changes where numbers are, never what they are: results are the same bit for bit.
"""

from collections.abc import Callable

from advnas.arguments import parse_size
from advnas.stores.candidate_weights import load_shared_weights
from advnas.stores.disk import Disk
from advnas.stores.host import Host
from advnas.stores.store import Resident, Store

__all__ = ["Disk", "Host", "Resident", "Store", "load_shared_weights", "make_store", "parse_size"]

_BY_NAME: dict[str, Callable[[], Store]] = {"resident": Resident, "host": Host}


def make_store(weights: str | Store, memory_budget: int | str | None) -> Store:
    """Make the store that the arguments of a Search ask for.

    Args:
        weights: "resident", "host", "disk" or a store object.
        memory_budget: For "disk", how much of the candidates may be in memory, such as "2GB".

    Returns:
        The store.

    Raises:
        ValueError: There is no such store, or the budget does not fit it.
        TypeError: `weights` is a class instead of an object.
    """
    if weights == "disk":
        if memory_budget is None:
            raise ValueError(
                "weights='disk' must know how much of the candidates may be in memory at a time. Write for example "
                "Search(..., weights='disk', memory_budget='2GB')."
            )
        return Disk(memory_budget)
    if memory_budget is not None:
        raise ValueError(
            f"memory_budget is {memory_budget!r} and weights is {weights!r}, but only weights='disk' keeps to a "
            "budget. Leave memory_budget out; a store object has its own, as in weights=advnas.stores.Disk('2GB')."
        )
    if isinstance(weights, str):
        if weights not in _BY_NAME:
            raise ValueError(f"weights must be 'resident', 'host', 'disk' or a store object, got {weights!r}.")
        return _BY_NAME[weights]()
    if isinstance(weights, type):
        raise TypeError(f"weights must be a store object, got a class. Write for example {weights.__name__}(...).")
    return weights

"""Tables of known results by name. Adding one: write its file, and give it a line below."""

from importlib import import_module
from types import ModuleType

from advnas.arguments import did_you_mean

TABLES = ("nasbench201", "nasbench_macro")
"""Each is the module of its name in this folder, with `find`, `load`, `query`, `to_string` and `from_string`."""


def get(name: str) -> ModuleType:
    """Import the module of a benchmark.

    Args:
        name: one of `TABLES`.

    Raises:
        ValueError: there is no such table.
    """
    if name not in TABLES:
        raise ValueError(
            f"There is no table {name!r}{did_you_mean(name, TABLES)}. Choose one of {', '.join(TABLES)}."
        )
    return import_module(f"advnas.tables.{name}")

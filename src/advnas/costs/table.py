"""Costs from a table of the user's own: a dict, a CSV file or a JSON file."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advnas.arguments import did_you_mean
from advnas.choice import Choice
from advnas.costs.cost import Cost
from advnas.space import SearchSpace
from advnas.structure import Condition, exclusive, modules_of, names_of, operations_of


def table(
    space: SearchSpace,
    source: Mapping[str, Mapping[str, float]] | Path | str,
    *,
    name: str,
    unit: str = "",
    constant: float = 0.0,
) -> Cost:
    """Take what every operation costs from a table: {"edge": {"conv": 1.5, "skip": 0}}.

    A nested operation costs nothing where it is not reached. The number of a decision with tied choices is for all
    of them together.

    Args:
        space: whose decisions and operations the table must name, all of them and no others.
        source: a mapping; or the path of a JSON file of the same form, or of a CSV file with the columns decision,
            operation and cost.
        name: what limits call it, such as "energy".
        unit: such as "mJ".
        constant: what the rest of the network costs.

    Raises:
        ValueError: a decision or an operation is missing or unknown, or a number is none, negative or not finite.
    """
    rows = source if isinstance(source, Mapping) else _read(Path(source))
    known = operations_of(space)
    _check_names("decision", rows, known, f"the table of {name}")
    places = _places(space)
    terms: dict[Condition, float] = {}
    for decision, operations in known.items():
        _check_names("operation", rows[decision], operations, f"decision {decision!r} in the table of {name}")
        for operation in operations:
            value = _number(rows[decision][operation], f"{decision!r}, {operation!r} in the table of {name}")
            terms |= {place | {(decision, operation)}: value for place in places[decision]}
    return Cost(name, unit, constant, terms)


def _places(space: SearchSpace) -> dict[str, list[Condition]]:
    """Where every decision is reached: conditions of which one holds at a time."""
    names, found = names_of(space), dict[str, list[Condition]]()
    for module, condition in modules_of(space):
        if isinstance(module, Choice):
            found.setdefault(names[module], []).append(condition)
    places = {}
    for decision, conditions in found.items():
        where = exclusive(conditions)
        if where is None:
            raise ValueError(
                f"The choices of decision {decision!r} lie in candidates of different decisions, so one number "
                "cannot tell what it costs. Give them different names."
            )
        places[decision] = where
    return places


def _check_names(kind: str, given: Any, wanted: Any, where: str) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must map every {kind} to numbers, got {given!r}.")
    for name in given:
        if name not in wanted:
            raise ValueError(f"{where} has an unknown {kind} {name!r}{did_you_mean(name, wanted)}.")
    for name in wanted:
        if name not in given:
            raise ValueError(f"{where} has no {kind} {name!r}. Add it, with 0 if it costs nothing.")


def _number(value: Any, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"The cost of {where} must be a number, got {value!r}.") from None


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if path.suffix == ".json":
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}.") from error
        if not isinstance(content, dict):
            raise ValueError(f'{path} must hold an object like {{"edge": {{"conv": 1.5}}}}, got {content!r:.80}.')
        return content
    rows: dict[str, dict[str, Any]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if {"decision", "operation", "cost"} - set(lines.fieldnames or ()):
            raise ValueError(f"{path} must be CSV with the columns decision, operation and cost, or end in .json.")
        for line in lines:
            rows.setdefault(line["decision"], {})[line["operation"]] = line["cost"]
    return rows

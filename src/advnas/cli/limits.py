"""`advnas search --limit`: what operations cost, found once for all runs, and what the plan says of it."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advnas.costs import Cost
    from advnas.search import Search
    from advnas.studies.study import Study

FILE = "costs.json"  # in a search's folder


def with_costs(study: "Study", strategy: str, seed: int, folder: Path) -> "Study":
    """Give a study the costs that its limits name: those in the folder of a search that goes on, or found now."""
    from advnas.studies.own_network import OwnNetworkStudy

    if not isinstance(study, OwnNetworkStudy) or not study.settings.limits:
        return study
    names, path = list(study.settings.limits), folder / FILE
    kept = _read(path) if path.exists() else []
    if [cost.name for cost in kept] == names:
        return replace(study, costs=tuple(kept))
    return replace(study, costs=study.measured(strategy, seed, names))


def _read(path: Path) -> "list[Cost]":
    from advnas.costs import Cost
    from advnas.records.files import parse_json

    return [Cost.from_json(one) for one in parse_json(path.read_bytes(), str(path)).get("costs", [])]


def keep_costs(study: "Study", folder: Path) -> None:
    """Leave the costs in the folder: those that are measured would be others the next time."""
    from advnas.records.files import write_atomically
    from advnas.studies.own_network import OwnNetworkStudy

    if isinstance(study, OwnNetworkStudy) and study.costs:
        write_atomically(
            folder / FILE, json.dumps({"costs": [cost.to_json() for cost in study.costs]}, indent=1) + "\n"
        )


def limits_told(search: "Search") -> dict[str, Any]:
    """The range of every cost with a limit, as plain values."""
    from advnas.studies.limits import ranges

    found = {one.name: asdict(one) for one in ranges(search)}
    return {"limits": found} if found else {}


def limit_rows(search: "Search") -> dict[str, str]:
    """The range of every cost with a limit, for people."""
    from advnas.studies.limits import ranges

    return {f"{one.name.replace('_', '-')} of an architecture": str(one) for one in ranges(search)}

"""advnas: find a network's architecture while it trains.

Mark the open decisions in any PyTorch module with `Choice`, let `Search` learn them with the memory and time
of training one architecture, and `derive` a plain module.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advnas import costs, stores, strategies
    from advnas.architecture import Architecture, Draw
    from advnas.choice import Choice, Zero
    from advnas.distribution import Distribution
    from advnas.reports.one_search import report
    from advnas.search import Callback, NonFiniteLoss, ProcessBest, Search, SearchStopped, Step, StopSearch
    from advnas.space import SearchSpace
    from advnas.task import Task
    from advnas.width import Width

__version__ = "0.2.0"

# Imported on first use, so that `advnas --help` need not wait for torch.
_HOMES = {
    "Architecture": "architecture",
    "Callback": "search",
    "Choice": "choice",
    "Distribution": "distribution",
    "Draw": "architecture",
    "NonFiniteLoss": "search",
    "ProcessBest": "search",
    "Search": "search",
    "SearchSpace": "space",
    "SearchStopped": "search",
    "Step": "search",
    "StopSearch": "search",
    "Task": "task",
    "Width": "width",
    "Zero": "choice",
    "report": "reports.one_search",
}

_ROOMS = (
    "answers",
    "costs",
    "export",
    "parallel",
    "records",
    "retrain",
    "stores",
    "strategies",
    "tasks",
    "testing",
)

__all__ = [
    "Architecture",
    "Callback",
    "Choice",
    "Distribution",
    "Draw",
    "NonFiniteLoss",
    "ProcessBest",
    "Search",
    "SearchSpace",
    "SearchStopped",
    "Step",
    "StopSearch",
    "Task",
    "Width",
    "Zero",
    "costs",
    "report",
    "stores",
    "strategies",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"advnas.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"advnas.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'advnas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, "__version__"})

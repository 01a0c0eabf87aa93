"""advnas: find a network's architecture while it trains.

Mark the open decisions in any PyTorch module with `Choice`, let `Search` learn them with the memory and time
of training one architecture, and `derive` a plain module.
"""

from advnas import strategies
from advnas.architecture import Architecture, Draw
from advnas.choice import Choice, Zero
from advnas.distribution import Distribution
from advnas.search import NonFiniteLoss, ProcessBest, Search, Step
from advnas.space import SearchSpace
from advnas.tasks import Task

__all__ = [
    "Architecture",
    "Choice",
    "Distribution",
    "Draw",
    "NonFiniteLoss",
    "ProcessBest",
    "Search",
    "SearchSpace",
    "Step",
    "Task",
    "Zero",
    "strategies",
]

__version__ = "0.1.0"

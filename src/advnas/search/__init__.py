"""Search: Algorithm 1, and the loop around it."""

from advnas.search.search import (
    PAPER_THETA,
    PAPER_WEIGHTS,
    Draws,
    LossOf,
    NonFiniteLoss,
    OptimizerOf,
    ProcessBest,
    Search,
    SearchStopped,
    Step,
    batches_in,
    constant,
    cosine,
    update_theta,
)

__all__ = [
    "PAPER_THETA",
    "PAPER_WEIGHTS",
    "Draws",
    "LossOf",
    "NonFiniteLoss",
    "OptimizerOf",
    "ProcessBest",
    "Search",
    "SearchStopped",
    "Step",
    "batches_in",
    "constant",
    "cosine",
    "update_theta",
]

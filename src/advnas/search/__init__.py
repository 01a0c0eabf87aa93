"""Search: Algorithm 1, and the loop around it."""

from advnas.search.data import Minibatches, Replay, Replayed, TwoStreams
from advnas.search.loop import Recorder, SearchRun, advance, run_search
from advnas.search.policy import Policy
from advnas.search.schedule import Length, batches_in, constant, cosine
from advnas.search.search import PAPER_THETA, PAPER_WEIGHTS, Search
from advnas.search.step import Draws, LossOf, NonFiniteLoss, OptimizerOf, ProcessBest, SearchStopped, Step
from advnas.search.swaps import CreditCheck, CreditWarning, Swap

__all__ = [
    "PAPER_THETA",
    "PAPER_WEIGHTS",
    "CreditCheck",
    "CreditWarning",
    "Draws",
    "Length",
    "LossOf",
    "Minibatches",
    "NonFiniteLoss",
    "OptimizerOf",
    "Policy",
    "ProcessBest",
    "Recorder",
    "Replay",
    "Replayed",
    "Search",
    "SearchRun",
    "SearchStopped",
    "Step",
    "Swap",
    "TwoStreams",
    "advance",
    "batches_in",
    "constant",
    "cosine",
    "run_search",
]

"""Search: Algorithm 1, and the loop around it."""

from advnas.search.averaging import Ema
from advnas.search.callbacks import Callback, Patience, RunView, StepScheduler, StopSearch, TimeLimit
from advnas.search.data import Minibatches, Replay, Replayed, TwoStreams
from advnas.search.device import on_device
from advnas.search.loop import SearchRun, advance, run_search
from advnas.search.policy import Policy
from advnas.search.recorder import Recorder
from advnas.search.running import RunOptions
from advnas.search.schedule import Length, batches_in, constant, cosine
from advnas.search.search import PAPER_THETA, PAPER_WEIGHTS, Search
from advnas.search.step import (
    Accumulated,
    Draws,
    LossOf,
    NonFiniteLoss,
    OptimizerOf,
    ProcessBest,
    SearchStopped,
    Step,
)
from advnas.search.swaps import CreditCheck, CreditWarning, Swap
from advnas.search.training_step import EvaluationModeWarning, StepsOverWarning
from advnas.search.unreached import UnreachedWarning
from advnas.search.verdict import UndecidedWarning, Verdict

__all__ = [
    "PAPER_THETA",
    "PAPER_WEIGHTS",
    "Accumulated",
    "Callback",
    "CreditCheck",
    "CreditWarning",
    "Draws",
    "Ema",
    "EvaluationModeWarning",
    "Length",
    "LossOf",
    "Minibatches",
    "NonFiniteLoss",
    "OptimizerOf",
    "Patience",
    "Policy",
    "ProcessBest",
    "Recorder",
    "Replay",
    "Replayed",
    "RunOptions",
    "RunView",
    "Search",
    "SearchRun",
    "SearchStopped",
    "Step",
    "StepScheduler",
    "StepsOverWarning",
    "StopSearch",
    "Swap",
    "TimeLimit",
    "TwoStreams",
    "UndecidedWarning",
    "UnreachedWarning",
    "Verdict",
    "advance",
    "batches_in",
    "constant",
    "cosine",
    "on_device",
    "run_search",
]

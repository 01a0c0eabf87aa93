"""What the files of one run hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from advnas.search.swaps import CreditCheck
from advnas.strategies import Answer
from advnas.structure import Nested

Operations = Mapping[str, str]
TakenBy = Literal["argmax", "process best", "ranked", "refined"]


@dataclass(frozen=True)
class BestDraw:
    """The architecture with the lowest loss of all that a search has drawn so far."""

    architecture: Operations
    loss: float


@dataclass(frozen=True)
class RankedBest:
    """The best of many uniform architectures by the shared weights, and the forward passes that this took."""

    architecture: Operations
    loss: float
    architectures: int
    passes: float


@dataclass(frozen=True)
class Record:
    """One measurement during the search.

    epoch: counted from the beginning of the warm-up. loss: mean over the steps of theta since the record before.
    metric: of the argmax with the weights it inherits, where the task has one.
    """

    epoch: float
    step: int
    entropy: float
    probabilities: Mapping[str, Mapping[str, float]]
    argmax: Operations
    process_best: BestDraw | None
    loss: float | None = None
    metric: float | None = None


@dataclass(frozen=True)
class Moment:
    """How long a search had taken, warm-up not included, when it measured at that epoch."""

    epoch: float
    seconds: float


@dataclass(frozen=True)
class Measure:
    """A number that answers are judged by."""

    name: str
    value: float
    more_is_better: bool

    @property
    def key(self) -> str:
        """Its name in spreadsheets."""
        return self.name.replace(" ", "_")

    @property
    def digits(self) -> int:
        """How many to write behind the point: more for shares and losses than for percents and perplexities."""
        return 4 if abs(self.value) < 5 else 2


@dataclass(frozen=True)
class Spent:
    """What an answer costs, of one cost that has a limit.

    front: (cost, log-likelihood) of the most likely architectures for all limits. note: what was measured again.
    """

    name: str
    unit: str
    limit: float
    amount: float
    front: tuple[tuple[float, float], ...] = ()
    note: str = ""

    @property
    def within(self) -> bool:
        """Whether the answer costs no more than the limit."""
        return self.amount <= self.limit


@dataclass(frozen=True)
class Evaluation:
    """What the answer of a search is worth after it was retrained from scratch.

    by: which answer that was. measures: answers are compared by the first; the others are told. validation_score:
    what the epoch was chosen by, the lower the better. spent: of every limit that the search had. no_file: why
    `advnas export` cannot write the answer; empty where it can.
    """

    by: TakenBy
    architecture: Operations
    measures: tuple[Measure, ...]
    validation_score: float
    parameters: int
    best_epoch: int
    spent: tuple[Spent, ...] = ()
    no_file: str = ""


@dataclass(frozen=True)
class RunResult:
    """What a finished run leaves.

    saved_bytes: activations kept for the backward pass of one step. evaluation: None where answers are looked up in
    a table. operation_sizes: weights of every operation; empty where the run did not tell. nested: when the network
    contains decisions that are not in every network. ranked, refined: what an answer stage found; None where there
    was none. passes: forward passes spent on theta and on the answer; None where the run did not tell. credit:
    measured swaps next to what the strategy believed; None where nothing was measured.
    """

    strategy: str
    seed: int
    argmax: Operations
    process_best: BestDraw | None
    seconds: float | None = None
    warmup_seconds: float = 0.0
    saved_bytes: float | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    operation_sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    nested: Nested = field(default_factory=dict)
    ranked: RankedBest | None = None
    refined: RankedBest | None = None
    passes: float | None = None
    credit: CreditCheck | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Whether the shared weights rank architectures as training alone does. text: in words."""

    text: str
    good: bool


@dataclass(frozen=True)
class Asked:
    """What `run.json` says about a run."""

    strategy: str | None = None
    seed: int | None = None
    answer: Answer = "argmax"
    learns: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    length: Mapping[str, int] = field(default_factory=dict)


def process_best(found: Record | RunResult) -> Operations | None:
    """Its architecture, if there is one yet."""
    return found.process_best.architecture if found.process_best else None

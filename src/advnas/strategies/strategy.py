"""What a search strategy is: how a draw is made, and how theta's gradient is made from what comes back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal

import torch
from torch import Tensor

from advnas.architecture import Draw

State = dict[str, Tensor]
"""What a strategy needs for its next step, as plain tensors, so that a checkpoint can hold it."""

Answer = Literal["argmax", "process_best", "ranked", "refined"]

GATED = 2.5
"""Forward passes that a pass with gates costs, forward and backward; see docs/studies.md."""
RIVAL = 0.9
"""Forward passes that one more operation per decision costs, run forward only beside the gated one."""


class Phase(Enum):
    """What a draw is for."""

    WARMUP = "weights, while theta is fixed"
    WEIGHTS = "weights"
    ARCHITECTURE = "theta"


@dataclass(frozen=True)
class Feedback:
    """What came back from running a draw on one minibatch. Leading dimensions are those of the draw.

    loss: [...]; the reward is r = -loss.
    slope: d loss / d weights, [..., decisions, candidates]; None where the draw asked for no gradient.
    reached: bool [decisions]; decisions off the drawn path were not reached and learn nothing.
    probe: the loss of other draws on the same minibatch, without a graph. Takes draws with one more leading
        dimension than this one and returns one loss for each.
    unrolled: the slope after a virtual step of the weights on the training loss (DARTS, second order).
    """

    loss: Tensor
    slope: Tensor | None
    reached: Tensor
    probe: Callable[[Draw], Tensor]
    unrolled: Callable[[], Tensor]

    @property
    def slopes(self) -> Tensor:
        """The slope, where the strategy knows that its draws ask for one."""
        assert self.slope is not None, "this draw asked for no gradient"
        return self.slope


class Strategy(ABC):
    """A search strategy: a frozen dataclass of hyper-parameters. State comes in and goes out as a value.

    Subclass it, write `draw` and `gradient`, and keep the defaults of everything else. An object of another class
    that has all of these attributes and methods works as well.

    All tensors may have leading dimensions (independent searches side by side), so write sums over the last
    axes only. Padding: logits of minus infinity, gradient 0.
    """

    weight_operations: ClassVar[int | None] = 1
    """How many operations per decision a weight step executes; None: all of them (dense)."""
    architecture_operations: ClassVar[int | None] = 1
    """The same for an architecture step."""
    architecture_every: ClassVar[int] = 1
    """In every how-many-th turn of the loop an architecture step is due: more than 1 where one step runs several
    architectures on its minibatch, so that a search costs what it costs with other strategies."""
    independent_draws: ClassVar[bool] = False
    """Whether several processes may each learn from a draw of their own: the mean of their gradients is the
    gradient, the mean of their next states the next state, and `project` does not look at the draw. Otherwise all
    processes run the same draw."""
    answer: ClassVar[Answer] = "argmax"
    """Which architecture is the result of a search: the most likely one, the drawn one with the lowest loss, or, by
    the shared weights at the end, the best of many draws ("ranked") or the best near the most likely one
    ("refined")."""
    learns: ClassVar[bool] = True
    """False for a baseline, whose theta never moves."""
    takes_architecture_steps: ClassVar[bool] = True
    """Whether a search takes architecture steps at all."""

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """Return the first state; empty by default. zeros: bool [decisions, candidates], the zero operations."""
        return {}

    @abstractmethod
    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """Return what the next step runs. progress: the share of the architecture steps already taken.

        None where the length of the search is not known; a schedule asks for it with `known(progress)`.
        """

    @abstractmethod
    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """Estimate grad_theta J, the direction in which the expected reward rises; shape of the logits.

        None: nothing yet, theta stays untouched in this step.
        """

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Return what an architecture step costs, in forward passes of one architecture over one minibatch.

        1 by default. A baseline that ranks is given as many passes as the most expensive strategy next to it.

        Args:
            sizes: how many candidates each decision has.
        """
        return 1.0

    def project(self, before: Tensor, after: Tensor, draw: Draw, state: State) -> Tensor:
        """Return where theta ends after the optimiser has moved it from `before` to `after`; there, by default."""
        return after


def known(progress: float | None) -> float:
    """The progress, for strategies that follow a schedule and cannot do without it."""
    if progress is None:
        raise ValueError(
            "This strategy lowers its temperature over the search and must know how long that is. "
            "Write Search(..., steps=N), N being the number of weight steps, or use Search.run."
        )
    return progress

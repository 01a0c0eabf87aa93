"""Random search with weight sharing: the baseline that ranks many uniform architectures by the shared weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, RIVAL, Answer, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class RankedRandom(Strategy):
    """Train the shared weights by uniform draws, then take the best of N uniform architectures.

    It takes no architecture steps. When the weights are trained, N different architectures are compared on the
    validation data by the weights they share (`advnas.answers.rank_uniform`). N is such that this takes as many
    forward passes as the architecture steps of a strategy that learns. So what learning adds can be told from what
    the shared weights know anyway. Studies and `advnas search` rank; `Search.run` only trains the weights.

    passes: forward passes for the ranking per architecture step of the others. The default is what `contrast`
        costs, the most expensive of the strategies that execute a fixed number of operations per decision. A study
        raises it to what the most expensive of its strategies costs.

    Li, Talwalkar: Random search and reproducibility for neural architecture search, UAI 2019.
    """

    passes: float = GATED + RIVAL

    independent_draws: ClassVar[bool] = True
    answer: ClassVar[Answer] = "ranked"
    learns: ClassVar[bool] = False
    takes_architecture_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.passes > 0:
            raise ValueError(f"passes must be positive, got {self.passes}. Write for example passes=3.4.")

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta, which stays uniform; no gates, no graph."""
        return Draw.bare(Distribution(logits).sample(generator))

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Spend the same on the ranking at the end."""
        return self.passes

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """Nothing, ever."""
        return None, state

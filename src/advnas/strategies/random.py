"""Random search: the equal-cost baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import Answer, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Random(Strategy):
    """Draw from the initial distribution for ever; theta never moves.

    It spends the same steps on the same data as the others, so that what the others add can be told from what
    drawing architectures gives for free. Its answer is the process best, as its mode means nothing.
    """

    independent_draws: ClassVar[bool] = True
    answer: ClassVar[Answer] = "process_best"
    learns: ClassVar[bool] = False

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; no gates, no graph."""
        return Draw.bare(Distribution(logits).sample(generator))

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """Nothing, ever."""
        return None, state

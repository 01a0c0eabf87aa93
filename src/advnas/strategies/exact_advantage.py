"""The exact advantage: what the reward loses when one decision's output is taken away."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.advantage import first_average, replace_zeros
from advnas.strategies.strategy import Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class ExactAdvantage(Strategy):
    """Measure every decision's share of the reward by leaving it out.

        A_i = r(a) - r(s_i, 0)                       (eq. adv-e)      r = -loss
        dJ/dtheta_i = E[ A_i (a_i - mu_i) ]          (Theorem 2: unbiased)

    One more forward pass per decision, on the same minibatch: the yardstick for the approximate advantage, not a
    way to save time.

    zero_rule, decay: as in `advantage`. Off by default, because Theorem 2 holds for the advantage of the zero
        operation as it is, which is 0.
    """

    zero_rule: bool = False
    decay: float = 0.05

    independent_draws: ClassVar[bool] = True

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """EMA = 0 at every operation."""
        return first_average(logits, zeros) if self.zero_rule else {}

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; no gates, no graph."""
        return Draw.bare(Distribution(logits).sample(generator))

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost one pass, and one more per decision."""
        return 1.0 + len(sizes)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """A_i (a_i - mu_i) with A_i = r(a) - r(s_i, 0)."""
        without = feedback.probe(draw.knock_outs())  # [decisions, ...]
        advantage = (without - feedback.loss).movedim(0, -1)
        if state:
            advantage, state = replace_zeros(advantage, draw.weights, feedback.reached, state, self.decay)
        return advantage.unsqueeze(-1) * Distribution(logits).score(draw.weights), state

"""REINFORCE: one reward for all decisions, less a baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Reinforce(Strategy):
    """Raise the probability of whole architectures by their reward.

        dJ/dtheta_i = E[ (r - b) (a_i - mu_i) ]      (eq. pg)      r = -loss

    b is a moving average of the rewards of architecture steps; it starts at the first reward and is updated
    after it is used, so that it never depends on the draw it is subtracted from. Needs no backward pass.

    decay: step of the moving average.

    Williams: Simple statistical gradient-following algorithms, Machine Learning 1992.
    """

    decay: float = 0.05

    independent_draws: ClassVar[bool] = True

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; no gates, no graph."""
        return Draw.bare(Distribution(logits).sample(generator))

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """(r - b) (a - mu)."""
        reward = -feedback.loss
        baseline = state.get("baseline", reward)
        advantage = (reward - baseline)[..., None, None]
        state = {"baseline": baseline + self.decay * (reward - baseline)}
        return advantage * Distribution(logits).score(draw.weights), state

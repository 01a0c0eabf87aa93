"""The exact contrast: what the reward gains when one decision takes its rival."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class ExactContrast(Strategy):
    """Measure at every decision what a rival would gain, by running the network with it.

        a ~ p,  b_i ~ p(. | b_i != a_i)
        dJ/dtheta_i = E[ 1/2 (1 - p_ia) (r(a with b_i at i) - r(a)) (e_b - e_a) ]

    `contrast` takes the difference to first order, from one backward pass; here it is measured, by one more forward
    pass per decision on the same minibatch. So it is unbiased for any reward, also where a decision stands in many
    tied places and a swap changes all of them at once. It is the yardstick for `contrast`, and a choice of its own
    for few decisions that stand in many places, such as those of a cell.
    """

    independent_draws: ClassVar[bool] = True

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; in architecture steps with a rival per decision. No gates, no graph."""
        distribution = Distribution(logits.detach())
        chosen = distribution.sample(generator)
        if phase is not Phase.ARCHITECTURE:
            return Draw.bare(chosen)
        return Draw.bare(chosen, rivals=distribution.without(chosen).sample(generator))

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost one pass, and one more per decision."""
        return 1.0 + len(sizes)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """1/2 (1 - p_a) (r(b_i) - r(a)) (e_b - e_a)."""
        chosen, rivals = draw.weights, draw.rivals
        gain = (feedback.loss - feedback.probe(draw.swaps())).movedim(0, -1)  # [..., decisions]
        weight = 0.5 * (1 - (Distribution(logits).probabilities * chosen).sum(-1))
        return (weight * gain).unsqueeze(-1) * (rivals - chosen), state

"""GDAS: a hard draw forward, the gradient of its Gumbel-softmax relaxation backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, Feedback, Phase, State, Strategy, known


@dataclass(frozen=True, kw_only=True)
class Gdas(Strategy):
    """Differentiate through the draw as if it were soft.

        s = softmax((theta + G) / tau),  G ~ Gumbel;     a = one-hot(argmax s) forward,  da/dtheta = ds/dtheta

    Only the drawn operation is computed. The others enter as the constant a_ik, which is 0 forward, so that
    their slope is sum(dr/dO_i) (the original's trick).

    hottest, coldest: tau falls linearly from one to the other over the architecture steps.

    Dong, Yang: Searching for a robust neural architecture in four GPU hours, CVPR 2019.
    """

    hottest: float = 10.0
    coldest: float = 0.1

    independent_draws: ClassVar[bool] = True

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; in architecture steps attached to its relaxation."""
        if phase is not Phase.ARCHITECTURE:
            return Draw.bare(Distribution(logits).sample(generator))
        temperature = self.hottest + known(progress) * (self.coldest - self.hottest)
        perturbed = Distribution(logits).perturbed(generator)
        soft = (perturbed / temperature).softmax(-1)
        hard = Distribution(perturbed).mode()
        return Draw(weights=hard + (soft - soft.detach()), active=hard != 0, constants=True)

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a forward pass with gates and the backward pass through them."""
        return GATED

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """dr/da carried on to theta through the relaxation."""
        (descent,) = torch.autograd.grad(draw.weights, logits, feedback.slopes)
        return -descent, state

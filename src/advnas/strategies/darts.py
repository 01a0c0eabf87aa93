"""DARTS: a dense, deterministic mixture of all operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Darts(Strategy):
    """Mix all operations by their probabilities and follow the gradient of the mixture's reward.

        a = mu(theta);      dr(mu(theta))/dtheta_i = mu_i * (dr/da_i - mu_i^T dr/da_i)

    second_order: take dr/da after a virtual step of the weights, as the original's code does it for SGD:

        w' = w - xi (momentum * buffer + grad_w loss_train(w, a) + decay * w)
        d loss_valid(w', a)/da - xi d^2 loss_train(w, a)/(da dw) . d loss_valid(w', a)/dw'

    Rate xi, momentum, buffer and decay are the weight optimiser's own, per parameter group. Nesterov's look-ahead
    and dampening, which the original does not know, are left out. Optimisers other than SGD get a plain gradient
    step, w' = w - xi grad_w loss_train(w, a).

    Liu, Simonyan, Yang: DARTS, ICLR 2019.
    """

    second_order: bool = False

    weight_operations: ClassVar[int | None] = None
    architecture_operations: ClassVar[int | None] = None
    independent_draws: ClassVar[bool] = True

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """All operations, weighted by mu(theta)."""
        return Draw(weights=Distribution(logits).probabilities, active=logits.isfinite())

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a pass with gates, forward and backward, of all candidates; four where it looks ahead."""
        return GATED * fmean(sizes) * (4 if self.second_order else 1)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """dr/dmu carried on to theta through the softmax."""
        slope = feedback.unrolled() if self.second_order else feedback.slopes
        (descent,) = torch.autograd.grad(draw.weights, logits, slope)
        return -descent, state

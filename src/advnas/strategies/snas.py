"""SNAS: a dense mixture drawn from the concrete distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, Feedback, Phase, State, Strategy, known


@dataclass(frozen=True, kw_only=True)
class Snas(Strategy):
    """Mix all operations by a relaxed draw and differentiate through it.

        a = softmax((theta + G) / tau),  G ~ Gumbel;      dJ/dtheta = E[ (da/dtheta)^T dr/da ]

    hottest, coldest: tau falls from `hottest` to 0 with a cosine over the architecture steps, and stops at
        `coldest`, since the paper's last step would divide by 0.

    Xie, Zheng, Liu, Lin: SNAS, ICLR 2019; here bilevel, like the others.
    """

    hottest: float = 1.0
    coldest: float = 0.03

    weight_operations: ClassVar[int | None] = None
    architecture_operations: ClassVar[int | None] = None
    independent_draws: ClassVar[bool] = True

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """All operations, weighted by a concrete draw."""
        temperature = max(self.coldest, self.hottest * (1 + math.cos(math.pi * known(progress))) / 2)
        mixture = (Distribution(logits).perturbed(generator) / temperature).softmax(-1)
        return Draw(weights=mixture, active=logits.isfinite())

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a pass with gates, forward and backward, of all candidates."""
        return GATED * fmean(sizes)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """dr/da carried on to theta through the relaxation."""
        (descent,) = torch.autograd.grad(draw.weights, logits, feedback.slopes)
        return -descent, state

"""NASP: proximal iterations that keep the forward pass discrete."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, RIVAL, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Nasp(Strategy):
    """Take the gradient at the nearest discrete architecture and apply it to the continuous one.

        a = one-hot(argmax theta),      theta <- clip(theta + eps dr/da)

    dr/da is wanted for every operation at the binary point, so an architecture step executes all of them
    (those with a_ij = 0 without a graph); a weight step executes one. The box that theta is clipped to reaches
    1/2 to both sides of its start: the original's [0, 1], which it starts in the middle of. (Started in a
    corner, at 1, every first step upwards would be lost.)

    Yao, Xu, Tu, Zhu: Efficient neural architecture search via proximal iterations, AAAI 2020.
    """

    architecture_operations: ClassVar[int | None] = None
    independent_draws: ClassVar[bool] = True

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """The middle of the box."""
        return {"middle": logits.detach().clone()}

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """The binarised theta; while theta is fixed, a random architecture, so that all weights are trained."""
        distribution = Distribution(logits)
        if phase is Phase.WARMUP:
            return Draw.bare(distribution.sample(generator))
        if phase is Phase.WEIGHTS:
            return Draw.bare(distribution.mode())
        return Draw(weights=distribution.mode().requires_grad_(), active=logits.isfinite())

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a pass with gates, forward and backward, and all other candidates."""
        return GATED + RIVAL * (fmean(sizes) - 1)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """dr/da at the binary point."""
        return -feedback.slopes, state

    def project(self, before: Tensor, after: Tensor, draw: Draw, state: State) -> Tensor:
        """Back into the box."""
        return after.clamp(state["middle"] - 0.5, state["middle"] + 0.5)

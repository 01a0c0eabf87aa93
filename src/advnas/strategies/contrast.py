"""Contrast: what an operation is worth against a rival."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.arguments import check_count
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, RIVAL, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Contrast(Strategy):
    """Credit every decision with the difference between the drawn operation and one that could have stood there.

        a ~ p,  b ~ p(. | b != a)
        dJ/dtheta_i ~ 1/2 (1 - p_ia) <dr/dO_i, O_ib - O_ia> (e_b - e_a)

    The drawn operation a stands behind a gate of 1, its rival b behind a gate of 0: it runs forward only, on the
    same input, and the slopes of the two gates are <dr/dO_i, O_ia> and <dr/dO_i, O_ib>. Uses of one decision in
    several places add up by the chain rule.

    The identity behind it, grad J = E over a, b ~ p of 1/2 (Q_b - Q_a)(e_b - e_a), is exact. Q_b - Q_a is taken to
    first order from a; since a and b change roles equally often, the mean is the trapezoid rule along the segment
    between the two outputs: unbiased where the reward is quadratic along it, wherever the choice stands
    (docs/theory.md). A zero operation is a rival like any other.

    rivals: how many different ones are drawn per decision; None for all others. Of several, each counts by its
        probability and the last one for all that were not drawn, which leaves the mean as it is.

    Its slopes are those of ProxylessNAS (Cai et al., ICLR 2019); that the trapezoid rule makes such an estimate
    second order is the idea of ReinMax (Liu et al., NeurIPS 2023).
    """

    rivals: int | None = 1

    architecture_operations: ClassVar[int | None] = 2
    independent_draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rivals is not None:
            check_count("rivals", self.rivals)
        executed = None if self.rivals is None else 1 + self.rivals
        object.__setattr__(self, "architecture_operations", executed)

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; in architecture steps behind a gate of 1, with rivals behind gates of 0."""
        distribution = Distribution(logits.detach())
        chosen = distribution.sample(generator)
        if phase is not Phase.ARCHITECTURE:
            return Draw.bare(chosen)
        return Draw.contrasted(chosen, self._draw_rivals(distribution.without(chosen), generator))

    def _draw_rivals(self, others: Distribution, generator: torch.Generator) -> Tensor:
        """Draw the rivals: how much each of them counts, adding up to 1 at every decision."""
        available = max(others.logits.shape[-1] - 1, 1)
        order = others.perturbed(generator).topk(min(self.rivals or available, available))
        counts = others.probabilities.gather(-1, order.indices)
        counts[..., -1] += (1 - counts.sum(-1)) * order.values[..., -1].isfinite()
        return torch.zeros_like(others.logits).scatter_(-1, order.indices, counts)

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a pass with gates, forward and backward, and the rivals."""
        return GATED + RIVAL * (max(sizes) - 1 if self.rivals is None else self.rivals)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """The mean over the rivals b of 1/2 (1 - p_a) <dr/dO, O_b - O_a> (e_b - e_a)."""
        chosen = draw.weights.detach()
        weight = 0.5 * (1 - (Distribution(logits).probabilities * chosen).sum(-1, keepdim=True))
        moved = weight * draw.rivals * draw.gains(feedback.slopes)
        return moved - moved.sum(-1, keepdim=True) * chosen, state

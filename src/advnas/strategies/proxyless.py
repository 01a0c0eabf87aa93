"""ProxylessNAS: two operations at a time, compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, RIVAL, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Proxyless(Strategy):
    """Draw two operations, run them, and shift probability between these two only.

        (j, k) ~ p_theta without replacement,  p = softmax(theta_j, theta_k),  g = one-hot draw from p
        dr/dtheta_j = sum over m in (j, k) of dr/dg_m p_m (1[m = j] - p_j)

    One of the two is active (gate 1), the other is computed behind a gate of 0. After the optimiser's step the
    two logits are rescaled so that the pair's total probability is what it was; the other logits stay.

    both_active: gate 1 for both, the "2-hot" of the AdvantageNAS authors' released code; no single
        architecture is ever evaluated then, so there is no process best.

    Cai, Zhu, Han: ProxylessNAS, ICLR 2019.
    """

    both_active: bool = False

    architecture_operations: ClassVar[int | None] = 2

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """One operation for the weights; two for theta, one of them with gate 1."""
        distribution = Distribution(logits.detach())
        if phase is not Phase.ARCHITECTURE:
            return Draw.bare(distribution.sample(generator))
        perturbed = distribution.perturbed(generator)
        pair = torch.zeros_like(perturbed).scatter_(-1, perturbed.topk(min(2, perturbed.shape[-1])).indices, 1)
        active = (pair != 0) & logits.isfinite()
        gates = active.to(logits.dtype) if self.both_active else _within(active, logits).sample(generator)
        return Draw(weights=gates.requires_grad_(), active=active)

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a pass with gates, forward and backward, and the second operation."""
        return GATED + RIVAL

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """The gradient of the two-way softmax; 0 outside the pair."""
        share = _within(draw.active, logits).probabilities
        reward_slope = -feedback.slopes
        return share * (reward_slope - (share * reward_slope).sum(-1, keepdim=True)), state

    def project(self, before: Tensor, after: Tensor, draw: Draw, state: State) -> Tensor:
        """Keep the pair's total probability and leave all other logits where they were."""
        excess = _total(after, draw.active) - _total(before, draw.active)
        return torch.where(draw.active, after - excess, before)


def _within(active: Tensor, logits: Tensor) -> Distribution:
    """The distribution restricted to the active operations."""
    return Distribution(logits.detach().masked_fill(~active, -torch.inf))


def _total(logits: Tensor, active: Tensor) -> Tensor:
    return logits.masked_fill(~active, -torch.inf).logsumexp(-1, keepdim=True)

"""AdvantageNAS: credit assignment by the approximate advantage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import GATED, Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Advantage(Strategy):
    """Credit every decision with its own share of the reward.

        A_i = (dr/dO_i)^T O_i                        (eq. adv-new)      r = -loss
        dJ/dtheta_i ~ A_i (a_i - mu_i),   a ~ p_theta

    O_i enters the network as w_i O_i with w_i = 1, so dr/dw_i is A_i; uses of one decision in several cells or
    time steps add up by the chain rule. Unbiased where the reward is linear in each decision's gate, and biased
    elsewhere (docs/theory.md). Without the zero rule this is also the estimator of DSNAS (Hu et al., CVPR 2020).

    zero_rule: a drawn zero operation, whose own advantage is always 0, gets the worst average advantage among
        the other operations of its decision (appendix, "Advantage for Zero Operation").
    decay: step of that moving average.

    Sato, Sakuma, Akimoto: AdvantageNAS, AAAI 2021.
    """

    zero_rule: bool = True
    decay: float = 0.05

    independent_draws: ClassVar[bool] = True

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """EMA = 0 at every operation."""
        return first_average(logits, zeros) if self.zero_rule else {}

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; in architecture steps each drawn operation stands behind a gate of 1."""
        chosen = Distribution(logits).sample(generator)
        return Draw.gated(chosen) if phase is Phase.ARCHITECTURE else Draw.bare(chosen)

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a forward pass with gates and the backward pass through them."""
        return GATED

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """A_i (a_i - mu_i) with A_i = dr/dw_i."""
        chosen = draw.weights.detach()
        advantage = -(feedback.slopes * chosen).sum(-1)
        if state:
            advantage, state = replace_zeros(advantage, chosen, feedback.reached, state, self.decay)
        return advantage.unsqueeze(-1) * Distribution(logits).score(chosen), state


def first_average(logits: Tensor, zeros: Tensor) -> State:
    """EMA = 0, and which operations it ranges over: neither zero operations nor padding.

    Nothing at all in a space without zero operations, where nobody would ask for it.
    """
    if not zeros.any():
        return {}
    return {
        "average": torch.zeros_like(logits, requires_grad=False),
        "zeros": zeros,
        "others": ~zeros & logits.detach().isfinite(),
    }


def replace_zeros(
    advantage: Tensor, chosen: Tensor, reached: Tensor, state: State, decay: float
) -> tuple[Tensor, State]:
    """The zero-operation rule. advantage: [..., decisions]; chosen: one-hot [..., decisions, candidates].

        EMA(i) <- EMA(i) + decay (A_i a_i - EMA(i) * a_i)        (eq. zero-ema)
        A_i    <- min over the non-zero j of EMA(i, j),    where the drawn operation is the zero operation

    The average moves only at the drawn operation, and only at decisions that were reached.
    """
    drawn = chosen * reached.unsqueeze(-1)
    average = state["average"] + decay * drawn * (advantage.unsqueeze(-1) - state["average"])
    worst = average.masked_fill(~state["others"], torch.inf).amin(-1)
    drew_zero = (chosen * state["zeros"]).any(-1) & worst.isfinite()  # infinite: nothing to compare with
    return torch.where(drew_zero, worst, advantage), {**state, "average": average}

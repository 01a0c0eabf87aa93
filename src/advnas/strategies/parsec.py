"""PARSEC: importance-weighted Monte Carlo over a handful of draws."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Parsec(Strategy):
    """Move p_theta towards the draws under which the data are most likely.

        omega_k = softmax over k of (n r_k),    a_1..a_K ~ p_theta
        dJ/dtheta = sum_k omega_k (a_k - mu)

    n r_k is the log-likelihood of a minibatch of n examples under draw k. The K draws are gathered over K
    architecture steps, so that a step costs what it costs the other strategies; theta rests in between.

    samples: K.
    examples: n, the number of examples (or tokens) a minibatch loss is the mean of.

    Casale, Gordon, Fusi: Probabilistic neural architecture search, 2019.
    """

    samples: int = 8
    examples: int = field(default=64, metadata={"task": "examples"})

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"PARSEC compares draws with each other and needs samples >= 2, got {self.samples}.")

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """Nothing gathered."""
        return {
            "draws": logits.new_empty(0, *logits.shape),
            "rewards": logits.new_empty(0, *logits.shape[:-2]),
            "reached": logits.new_empty(0, *logits.shape[:-1], dtype=torch.bool),
        }

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ p_theta; no gates, no graph."""
        return Draw.bare(Distribution(logits).sample(generator))

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """sum_k omega_k (a_k - mu) once K draws are there, else None."""
        draws = torch.cat([state["draws"], draw.weights[None]])
        rewards = torch.cat([state["rewards"], -feedback.loss[None]])
        reached = torch.cat([state["reached"], feedback.reached.expand(draw.weights.shape[:-1])[None]])
        if len(draws) < self.samples:
            return None, {"draws": draws, "rewards": rewards, "reached": reached}
        importance = (self.examples * rewards).softmax(0)[..., None, None]
        gradient = (importance * Distribution(logits).score(draws) * reached.unsqueeze(-1)).sum(0)
        return gradient, {"draws": draws[:0], "rewards": rewards[:0], "reached": reached[:0]}

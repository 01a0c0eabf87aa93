"""PARSEC: importance-weighted Monte Carlo over a handful of draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.randomness import generator as stream
from advnas.strategies.strategy import Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Parsec(Strategy):
    """Move p_theta towards the draws under which the data are most likely.

        omega_k = softmax over k of (n r_k),    a_1..a_K ~ p_theta
        dJ/dtheta = sum_k omega_k (a_k - mu)

    n r_k is the log-likelihood of one minibatch of n examples under draw k. All K draws run forward on the same
    minibatch with the same randomness, so that omega compares architectures and not minibatches. Such a step is
    taken in every K-th turn of the loop, so that a search runs as many architectures for theta as with other
    strategies.

    samples: K.
    examples: n, the number of examples (or tokens) a minibatch loss is the mean of.
    minibatch_per_draw: gather the K draws over K steps, each on a minibatch of its own, as the released code of the
        AdvantageNAS authors does. Draws that met easy minibatches then get large weights.

    Casale, Gordon, Fusi: Probabilistic neural architecture search, 2019.
    """

    samples: int = 8
    examples: int = field(default=64, metadata={"task": "examples"})
    minibatch_per_draw: bool = False

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"PARSEC compares draws with each other and needs samples >= 2, got {self.samples}.")
        object.__setattr__(self, "architecture_every", 1 if self.minibatch_per_draw else self.samples)

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """The seed of the draws that are made in `gradient`; or nothing gathered."""
        if not self.minibatch_per_draw:
            return {"seed": torch.randint(2**62, (), generator=generator), "steps": torch.tensor(0)}
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

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Cost a forward pass per draw."""
        return 1.0 if self.minibatch_per_draw else float(self.samples)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """sum_k omega_k (a_k - mu); while draws are gathered, None."""
        if self.minibatch_per_draw:
            return self._gather(feedback, draw, logits, state)
        others = self._draw_others(logits, state)
        draws = torch.cat([draw.weights[None], others.weights])
        rewards = -torch.cat([feedback.loss[None], feedback.probe(others)])
        return self._weighted(draws, rewards, logits).sum(0), {**state, "steps": state["steps"] + 1}

    def _draw_others(self, logits: Tensor, state: State) -> Draw:
        """a_2..a_K ~ p_theta, in a new first dimension."""
        rows = logits.detach().repeat(self.samples - 1, *[1] * logits.dim())
        return Draw.bare(Distribution(rows).sample(stream(int(state["seed"]), int(state["steps"]))))

    def _weighted(self, draws: Tensor, rewards: Tensor, logits: Tensor) -> Tensor:
        """omega_k (a_k - mu) for every k."""
        importance = (self.examples * rewards).softmax(0)[..., None, None]
        return importance * Distribution(logits).score(draws)

    def _gather(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        draws = torch.cat([state["draws"], draw.weights[None]])
        rewards = torch.cat([state["rewards"], -feedback.loss[None]])
        reached = torch.cat([state["reached"], feedback.reached.expand(draw.weights.shape[:-1])[None]])
        if len(draws) < self.samples:
            return None, {"draws": draws, "rewards": rewards, "reached": reached}
        gradient = (self._weighted(draws, rewards, logits) * reached.unsqueeze(-1)).sum(0)
        return gradient, {"draws": draws[:0], "rewards": rewards[:0], "reached": reached[:0]}

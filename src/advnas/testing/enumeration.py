"""Small search spaces in full: sums over all architectures in place of samples, in float64.

space = SearchSpace(model.double())
problem = Enumeration(random_logits(space.sizes, generator), network_objective(space, loss_of))
problem.gradient                                                  # grad_theta J, exactly
problem.moments(problem.estimates(Advantage(zero_rule=False)))    # mean and variance of an estimator of it
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.space import SearchSpace
from advnas.strategies import Feedback, Phase, State, Strategy

Objective = Callable[[Draw], tuple[Tensor, Tensor]]
"""Runs one draw: its loss (a scalar), and which decisions it came to (bool [decisions])."""


def network_objective(space: SearchSpace, loss_of: Callable[[nn.Module], Tensor]) -> Objective:
    """The loss of a network's draws on one minibatch, as `Search` would run them."""

    def run(draw: Draw) -> tuple[Tensor, Tensor]:
        with space.running(draw) as run:
            loss = loss_of(space.model)
        return loss, run.reached

    return run


def reward_objective(reward: Callable[[Tensor], Tensor]) -> Objective:
    """A reward given as a function of the weights [decisions, candidates], with no network behind it."""

    def run(draw: Draw) -> tuple[Tensor, Tensor]:
        return -reward(draw.weights), torch.ones(draw.weights.shape[-2], dtype=torch.bool)

    return run


def table_reward(table: Tensor) -> Callable[[Tensor], Tensor]:
    """The reward function of a table [K_1 + 1, ..., K_D + 1], one dimension a decision.

    The last entry of each dimension is the reward without that decision's output, (s_i, 0). Between its
    entries the table is interpolated linearly in each decision's weights.
    """

    def reward(weights: Tensor) -> Tensor:
        value = table
        for row, entries in zip(weights, table.shape, strict=True):
            present = row[: entries - 1]
            value = torch.tensordot(torch.cat([present, 1 - present.sum(0, keepdim=True)]), value, dims=1)
        return value

    return reward


def random_logits(sizes: Sequence[int], generator: torch.Generator, *, scale: float = 1.0) -> Tensor:
    """theta uniform in [-scale, scale], padded with minus infinity: [decisions, candidates]."""
    logits = scale * (2 * torch.rand(len(sizes), max(sizes), generator=generator, dtype=torch.float64) - 1)
    return logits.masked_fill(torch.arange(max(sizes)) >= torch.tensor(sizes).unsqueeze(-1), -torch.inf)


def every_architecture(sizes: Sequence[int]) -> Tensor:
    """All architectures, the first decision changing slowest: one-hot [architectures, decisions, candidates]."""
    grid = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))
    return F.one_hot(grid, max(sizes)).double()


@dataclass(frozen=True)
class Moments:
    """Mean and spread of a gradient estimator under a ~ p_theta.

    mean: E[delta], [decisions, candidates]. second_moment: E|delta_i|^2, [decisions].
    """

    mean: Tensor
    second_moment: Tensor

    @property
    def variance(self) -> Tensor:
        """Var[delta_i] = E|delta_i|^2 - |E[delta_i]|^2, [decisions]."""
        return self.second_moment - self.mean.square().sum(-1)


@dataclass(frozen=True)
class Enumeration:
    """J(theta) = E[r(a)], a ~ p_theta, and everything about it that a sum over all architectures can tell.

    logits: theta, [decisions, candidates] in float64, padded with minus infinity.
    objective: runs a draw. It is called once an architecture, so the space must be small.
    """

    logits: Tensor
    objective: Objective

    def __post_init__(self) -> None:
        if self.logits.dtype != torch.float64:
            raise ValueError(
                f"An enumeration is exact only in float64, got logits in {self.logits.dtype}. Write "
                "logits.double(), and model.double() for a network."
            )

    @cached_property
    def architectures(self) -> Tensor:
        """Every a: one-hot [architectures, decisions, candidates]."""
        return every_architecture(self.logits.isfinite().sum(-1).tolist())

    @cached_property
    def rewards(self) -> Tensor:
        """r(a) = -loss of every architecture: [architectures]."""
        with torch.no_grad():
            return torch.stack([-self.objective(Draw.bare(chosen))[0] for chosen in self.architectures])

    def probabilities(self, logits: Tensor | None = None) -> Tensor:
        """p_theta(a): [..., architectures] for logits [..., decisions, candidates]; own theta by default."""
        mu = Distribution(self.logits if logits is None else logits).probabilities
        return (mu.unsqueeze(-3) * self.architectures).sum(-1).prod(-1)

    def expected_reward(self, logits: Tensor | None = None) -> Tensor:
        """J(theta) = sum_a p_theta(a) r(a): [...] for logits [..., decisions, candidates]."""
        return self.probabilities(logits) @ self.rewards

    @cached_property
    def gradient(self) -> Tensor:
        """grad_theta J, by differentiating the sum itself: [decisions, candidates]."""
        logits = self.logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.expected_reward(logits), logits)
        return gradient

    def estimates(self, strategy: Strategy, state: State | None = None) -> Tensor:
        """What the strategy makes of every single architecture: [architectures, decisions, candidates].

        For strategies that draw one operation a decision from p_theta and answer each draw by itself. The
        state is the same for all of them, e.g. {"baseline": torch.tensor(0.0)} for REINFORCE; by default the
        first state of a search without zero operations. Decisions off the drawn path get 0, as in a search.
        """
        generator = torch.Generator()
        if state is None:
            state = strategy.init(self.logits, torch.zeros_like(self.logits, dtype=torch.bool), generator)
        sample = strategy.draw(self.logits, state, Phase.ARCHITECTURE, 0.0, generator)
        if sample.constants or not (sample.one_hot and (sample.active.sum(-1) == 1).all()):
            raise ValueError(
                f"{strategy} does not run one operation a decision, so a sum over architectures is not its mean."
            )
        make = Draw.gated if sample.weights.requires_grad else Draw.bare
        return torch.stack([self._estimate(strategy, make(chosen), state) for chosen in self.architectures])

    def _estimate(self, strategy: Strategy, draw: Draw, state: State) -> Tensor:
        seen = feedback(self.objective, draw)
        with torch.no_grad():
            gradient, _ = strategy.gradient(seen, draw, self.logits, state)
        if gradient is None:
            raise ValueError(f"{strategy} gave no gradient for a single draw, so its mean cannot be summed up.")
        return gradient * seen.reached.unsqueeze(-1)

    def moments(self, estimates: Tensor) -> Moments:
        """The exact mean and second moment of estimates [architectures, decisions, candidates]."""
        probabilities = self.probabilities()
        return Moments(
            mean=torch.einsum("a,aij->ij", probabilities, estimates),
            second_moment=torch.einsum("a,aij->i", probabilities, estimates.square()),
        )


def feedback(objective: Objective, draw: Draw) -> Feedback:
    """What a strategy gets to see of one draw; d loss / d weights where the draw asks for it."""

    def probe(draws: Draw) -> Tensor:
        with torch.no_grad():
            return torch.stack([objective(other)[0] for other in draws])

    def unrolled() -> Tensor:
        raise ValueError("Second-order strategies need weights to step ahead with; use Search.architecture_step.")

    gated = draw.weights.requires_grad
    with torch.set_grad_enabled(gated):
        loss, reached = objective(draw)
    slope = torch.autograd.grad(loss, draw.weights)[0] if gated else None
    return Feedback(loss=loss.detach(), slope=slope, reached=reached, probe=probe, unrolled=unrolled)

"""Small search spaces in full: sums over all architectures in place of samples, in float64.

space = SearchSpace(model.double())
problem = Enumeration(random_logits(space.sizes, generator), network_objective(space, loss_of))
problem.gradient                                   # grad_theta J, exactly
problem.estimates(Contrast()).mean                 # what an estimator of it gives on average; also its variance
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.space import SearchSpace
from advnas.strategies import Feedback, Phase, State, Strategy
from advnas.strategies.proxyless import Proxyless

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
    """The reward function of a table [K_1 + 1, ..., K_D + 1], one dimension per decision.

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
class Estimates:
    """A gradient estimator in full: its value for everything that one step may draw.

    values: delta, [draws, decisions, candidates]. probabilities: of the draws, [draws].
    """

    values: Tensor
    probabilities: Tensor

    @cached_property
    def mean(self) -> Tensor:
        """E[delta], [decisions, candidates]."""
        return torch.einsum("a,aij->ij", self.probabilities, self.values)

    @property
    def second_moment(self) -> Tensor:
        """E|delta_i|^2, [decisions]."""
        return torch.einsum("a,aij->i", self.probabilities, self.values.square())

    @property
    def variance(self) -> Tensor:
        """Var[delta_i] = E|delta_i|^2 - |E[delta_i]|^2, [decisions]."""
        return self.second_moment - self.mean.square().sum(-1)


@dataclass(frozen=True)
class Outcome:
    """What one step may draw at one decision.

    chosen: one-hot [candidates]. rivals: how much each rival counts, [candidates].
    """

    probability: float
    chosen: Tensor
    rivals: Tensor


Outcomes = Callable[[list[float], int], Iterator[Outcome]]
"""All outcomes at one decision, from the probabilities of its operations and the width to pad them to."""


def single_operations(mu: list[float], width: int) -> Iterator[Outcome]:
    """One operation a ~ p_theta."""
    operations = torch.eye(width, dtype=torch.float64)
    for probability, chosen in zip(mu, operations, strict=False):  # what is left of them is padding
        yield Outcome(probability, chosen, torch.zeros_like(chosen))


def ordered_rivals(count: int) -> Outcomes:
    """a ~ p_theta and `count` rivals ~ p(. | not a), one after the other without replacement; as in `contrast`.

    Each rival counts by its probability p(b | not a), and the last one for all that were not drawn.
    """

    def outcomes(mu: list[float], width: int) -> Iterator[Outcome]:
        for alone in single_operations(mu, width):
            chosen = int(alone.chosen.argmax())
            others = [operation for operation in range(len(mu)) if operation != chosen]
            orders = permutations(others, count) if count < len(others) else [tuple(others)]
            for order in orders:
                chance, shares = _chance(order, others, mu), _shares(order, others, mu, width)
                yield Outcome(mu[chosen] * chance, alone.chosen, shares)

    return outcomes


def _chance(order: tuple[int, ...], others: list[int], mu: list[float]) -> float:
    """The probability of this order of rivals; 1 if they are all others, since no order matters then."""
    if len(order) == len(others):
        return 1.0
    left = [sum(mu[other] for other in others if other not in order[:drawn]) for drawn in range(len(order))]
    return math.prod(mu[rival] / rest for rival, rest in zip(order, left, strict=True))


def _shares(order: tuple[int, ...], others: list[int], mu: list[float], width: int) -> Tensor:
    """How much each rival counts."""
    total = sum(mu[other] for other in others)
    shares = torch.zeros(width, dtype=torch.float64)
    for rival in order:
        shares[rival] = mu[rival] / total
    shares[list(order[-1:])] += 1 - shares.sum()
    return shares


def active_pairs(mu: list[float], width: int) -> Iterator[Outcome]:
    """Two operations ~ p_theta without replacement, one of them active; as in `proxyless`."""
    for pair in ordered_rivals(1)(mu, width):
        j, k = mu[int(pair.chosen.argmax())], mu[int(pair.rivals.argmax())]
        together = j * k * (1 / (1 - j) + 1 / (1 - k)) * j / (j + k) if len(mu) > 1 else 1.0
        yield Outcome(together, pair.chosen, pair.rivals)


@dataclass(frozen=True)
class Enumeration:
    """J(theta) = E[r(a)], a ~ p_theta, and everything about it that a sum over all architectures can tell.

    logits: theta, [decisions, candidates] in float64, padded with minus infinity.
    objective: runs a draw. It is called once per architecture, so the space must be small.
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

    def estimates(self, strategy: Strategy, state: State | None = None) -> Estimates:
        """What the strategy makes of everything that it may draw.

        For strategies that answer each draw by itself and run one operation per decision (one draw per
        architecture, in the order of `architectures`), rivals behind gates of 0 (`contrast`) or the pairs of
        `proxyless`. The state is the same for all draws, e.g. {"baseline": torch.tensor(0.0)} for REINFORCE; by
        default the first state of a search without zero operations. Decisions off the drawn path get 0, as in a
        search.

        Args:
            strategy: what draws and estimates.
            state: what it remembers.

        Raises:
            ValueError: it runs several operations at once, or gives no gradient for a single draw.
        """
        if strategy.architecture_every > 1:
            raise ValueError(
                f"{strategy} answers several draws together, so a sum over architectures is not its mean."
            )
        generator = torch.Generator()
        if state is None:
            state = strategy.init(self.logits, torch.zeros_like(self.logits, dtype=torch.bool), generator)
        sample = strategy.draw(self.logits, state, Phase.ARCHITECTURE, 0.0, generator)
        joint = list(self._outcomes(_outcomes_of(strategy, sample)))
        run = self._runner(gated=sample.weights.requires_grad)
        values = torch.stack([self._estimate(strategy, each, state, run(each.chosen)) for each in joint])
        return Estimates(values, torch.tensor([each.probability for each in joint], dtype=torch.float64))

    def _runner(self, *, gated: bool) -> Callable[[Tensor], Feedback]:
        """Run every architecture once, with all its rivals, since a gate of 0 changes no other gate's slope."""
        found: dict[bytes, Feedback] = {}

        def run(chosen: Tensor) -> Feedback:
            key = chosen.numpy().tobytes()
            if key not in found:
                rivals = (1 - chosen) * self.logits.isfinite()
                draw = Draw.contrasted(chosen, rivals) if gated else Draw.bare(chosen)
                found[key] = feedback(self.objective, draw)
            return found[key]

        return run

    def _outcomes(self, outcomes: Outcomes) -> Iterator[Outcome]:
        """The outcomes at all decisions together: chosen and rivals are [decisions, candidates]."""
        rows = [row[row.isfinite()].softmax(-1).tolist() for row in self.logits]
        for joint in product(*(list(outcomes(row, self.logits.shape[-1])) for row in rows)):
            probability = math.prod(each.probability for each in joint)
            chosen = torch.stack([each.chosen for each in joint])
            yield Outcome(probability, chosen, torch.stack([each.rivals for each in joint]))

    def _estimate(self, strategy: Strategy, outcome: Outcome, state: State, seen: Feedback) -> Tensor:
        draw = Draw.contrasted(outcome.chosen, outcome.rivals)
        with torch.no_grad():
            gradient, _ = strategy.gradient(seen, draw, self.logits, state)
        if gradient is None:
            raise ValueError(f"{strategy} gave no gradient for a single draw, so its mean cannot be summed up.")
        return gradient * seen.reached.unsqueeze(-1)


def _outcomes_of(strategy: Strategy, sample: Draw) -> Outcomes:
    """How the strategy draws at every decision, told by one of its draws."""
    active = int(sample.active.sum(-1).max())
    if sample.one_hot and not sample.constants:
        if isinstance(strategy, Proxyless):
            return active_pairs
        if sample.shares is not None:
            return ordered_rivals(max(active - 1, 1))  # rivals that do not run are one per decision
        if active == 1:
            return single_operations
    raise ValueError(
        f"{strategy} does not run one operation per decision, with or without rivals behind gates of 0, so a sum "
        "over architectures is not its mean. Estimate it from samples."
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

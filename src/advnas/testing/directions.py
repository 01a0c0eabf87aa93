"""Where a strategy pushes theta, next to where the expected reward rises, both while theta is uniform.

truth = Truth.of(chosen, rewards)                              # of all architectures, or of uniform draws
estimates = collect(model, "contrast", losses, steps=1000)     # by the steps of a search whose theta stays put
direction(estimates, truth).mean                               # cosine of their mean with the truth, and its error
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from advnas.randomness import generator
from advnas.search import LossOf, Search
from advnas.strategies import Strategy

_LENGTH = 10**9  # of the search that is measured: strategies with a schedule are at its beginning
_TRUTH, _STEPS = range(2)  # purposes of the random numbers of the bootstrap


class Figure(NamedTuple):
    """A number, and its standard error by the bootstrap."""

    value: float
    error: float


@dataclass(frozen=True)
class Direction:
    """Cosines of a strategy's estimates with the true gradient.

    mean: of the mean estimate. clipped: of the mean after each estimate was shortened to the median norm. step: the
    mean over the estimates of their own cosines.
    """

    mean: Figure
    clipped: Figure
    step: Figure


@dataclass(frozen=True)
class Truth:
    """The gradient of the expected reward at uniform theta.

        dJ/dtheta_ik = p_k (Q_ik - mean reward),    p_k = 1 / (operations of decision i)

    gradient: [decisions, candidates], 0 at padding. replicates: bootstrap copies of it, [copies, decisions,
    candidates]; all equal where all architectures are known. split_half: cosine of the gradients of two halves of
    the sample; 1 where all architectures are known.
    """

    gradient: Tensor
    replicates: Tensor
    split_half: float

    @classmethod
    def of(cls, chosen: Tensor, rewards: Tensor, *, exact: bool, copies: int = 400, seed: int = 0) -> "Truth":
        """Compute it from the rewards of architectures.

        Args:
            chosen: one-hot [architectures, decisions, candidates]: every one of the space, or uniform draws.
            rewards: [architectures].
            exact: whether these are all architectures of the space.
            copies: how many replicates the bootstrap makes.
            seed: of the bootstrap.
        """
        gradient = reward_gradient(chosen, rewards)
        if exact:
            return cls(gradient, gradient.expand(copies, *gradient.shape), 1.0)
        counts = _resample(len(rewards), copies, generator(seed, _TRUTH))
        replicates = torch.stack([reward_gradient(chosen, rewards, count) for count in counts])
        halves = [reward_gradient(chosen[half::2], rewards[half::2]) for half in range(2)]
        return cls(gradient, replicates, cosine(*halves).item())


def reward_gradient(chosen: Tensor, rewards: Tensor, counts: Tensor | None = None) -> Tensor:
    """Compute dJ/dtheta at uniform theta from the rewards of all architectures, or estimate it from uniform draws.

    The effects of all decisions are fitted together by least squares. For all architectures these are the
    differences of means in the definition; for a sample they have less variance, as no decision's effect is noise
    for another.

    Args:
        chosen: one-hot [architectures, decisions, candidates], all 0 at padding.
        rewards: [architectures].
        counts: how often each architecture counts; once, by default.

    Returns:
        [decisions, candidates], in float64.
    """
    weights = torch.ones_like(rewards, dtype=torch.float64) if counts is None else counts.double()
    weights = weights / weights.sum()
    features, values = chosen.double().flatten(1), rewards.double()
    features, values = features - weights @ features, values - weights @ values
    weighted = features * weights.unsqueeze(-1)
    inverse = torch.linalg.pinv(weighted.T @ features, rtol=1e-9, hermitian=True)
    effects: Tensor = (inverse @ (weighted.T @ values)).view(chosen.shape[1:])
    return effects / chosen.any(0).sum(-1, keepdim=True)


def collect(
    model: nn.Module,
    strategy: str | Strategy,
    losses: Sequence[LossOf],
    *,
    steps: int,
    warmup: int = 0,
    seed: int = 0,
) -> Tensor:
    """Take architecture steps of a search while theta stays uniform and the weights as they are.

    Args:
        model: the parent, with trained weights.
        strategy: whose estimates are wanted.
        losses: on minibatches, which the steps use in turn.
        steps: how many are taken.
        warmup: how many are taken before them, whose estimates are discarded: averages that the strategy keeps,
            such as REINFORCE's baseline, have settled by then.
        seed: of the draws.

    Returns:
        What the strategy would move theta by: [estimates, decisions, candidates] in float64, 0 at padding. There
        are fewer estimates than steps where the strategy gathers several draws for one, as PARSEC does.

    Raises:
        ValueError: the strategy gives theta no gradient.
    """
    found: list[Tensor] = []
    search = Search(
        model,
        strategy,
        steps=_LENGTH,
        architecture_optimizer=partial(_Recorder, found=found),
        architecture_clip=None,
        seed=seed,
    )
    for number in range(warmup + steps):
        if number == warmup:
            found.clear()
        search.architecture_step(losses[number % len(losses)])
    if not found:
        raise ValueError(
            f"{search.strategy} gave theta no gradient in {steps} steps, so there is no direction to look at. Take "
            "more steps, or another strategy: ENAS never gives one, as it learns the weights of a controller."
        )
    return torch.stack(found)


class _Recorder(torch.optim.Optimizer):
    """Append what theta would be moved by to a list, and leave theta where it is."""

    def __init__(self, parameters: list[nn.Parameter], found: list[Tensor]) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self._found = found

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Read the gradients; decisions that were not reached have none."""
        rows = [row for group in self.param_groups for row in group["params"]]
        estimate = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.float64)
        for own, row in zip(estimate, rows, strict=True):
            if row.grad is not None:
                own[: len(row)] = -row.grad
        self._found.append(estimate)


def direction(estimates: Tensor, truth: Truth, *, seed: int = 0) -> Direction:
    """Compare a strategy's estimates with the true gradient.

    The errors are those of the bootstrap over the steps and, where the truth is a sample, over its architectures.

    Args:
        estimates: [steps, decisions, candidates].
        truth: the gradient and its replicates.
        seed: of the bootstrap.
    """
    shares = _resample(len(estimates), len(truth.replicates), generator(seed, _STEPS)) / len(estimates)
    single = cosine(estimates, truth.replicates.unsqueeze(1))
    return Direction(
        mean=_mean_figure(estimates, truth, shares),
        clipped=_mean_figure(clip_to_median(estimates), truth, shares),
        step=Figure(cosine(estimates, truth.gradient).mean().item(), (shares * single).sum(-1).std().item()),
    )


def _mean_figure(estimates: Tensor, truth: Truth, shares: Tensor) -> Figure:
    means = torch.einsum("rs,sij->rij", shares, estimates)
    copies = cosine(means, truth.replicates)
    return Figure(cosine(estimates.mean(0), truth.gradient).item(), copies.std().item())


def _resample(count: int, copies: int, random: torch.Generator) -> Tensor:
    """How often each of `count` things is drawn in `count` draws with replacement: [copies, count]."""
    drawn = torch.randint(count, (copies, count), generator=random)
    return torch.zeros(copies, count, dtype=torch.float64).scatter_add_(-1, drawn, torch.ones_like(drawn).double())


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Compute the cosine over the last two dimensions; 0 where either is all zeros."""
    product = (one * other).sum((-2, -1))
    norms = one.square().sum((-2, -1)).sqrt() * other.square().sum((-2, -1)).sqrt()
    return torch.where(norms > 0, product / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0.0)


def clip_to_median(estimates: Tensor) -> Tensor:
    """Shorten every estimate [steps, decisions, candidates] to the median of their norms, where it is longer."""
    norms = estimates.square().sum((-2, -1), keepdim=True).sqrt()
    return estimates * (norms.median() / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(max=1.0)

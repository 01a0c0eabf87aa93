"""From theta to a network: rank architectures by their inherited weights, and make a derived one fit for use."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from advnas.answers.shared_loss import LossOnBatch, SharedLoss
from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.distribution import Distribution
from advnas.randomness import generator, seed_of
from advnas.search import Search
from advnas.structure import Nesting

_SPARE = 8  # draws per architecture that is wanted, where limits forbid some

Source = Literal["argmax", "process best", "draw", "refined"]


@dataclass(frozen=True)
class Scored:
    """An architecture on inherited weights. score: its mean loss, the lower the better. source: who proposed it."""

    architecture: Architecture
    score: float
    source: Source


def rank_architectures(
    search: Search,
    batches: Iterable[Any],
    loss: LossOnBatch,
    *,
    count: int = 16,
    seed: int = 0,
) -> list[Scored]:
    """Score architectures on all the validation data with the weights they inherit, best first.

    batches: validation minibatches, read once for every architecture; score is the mean over them.
    loss: the scalar loss of a module on a minibatch, such as `task.loss`.
    count: how many different networks, or all there are. The most likely one and the best of the search
        process are always among them; the others are drawn from theta.
    seed: of the draws, and of what is random in the data or the loss, which is the same for every architecture.

    `SharedLoss` says how an architecture is run. A module that is to be used afterwards needs
    `reestimate_batch_norm`. The search is left exactly as it was.
    """
    check_count("count", count)
    judged = SharedLoss(search, batches, loss, seed=seed_of(seed, 1))
    proposals = propose(search, count, generator(seed, 0))
    scored = [Scored(architecture, judged.mean(architecture), source) for architecture, source in proposals.items()]
    return sorted(scored, key=lambda one: one.score)


def propose(search: Search, count: int, random: torch.Generator) -> dict[Architecture, Source]:
    """Name up to `count` different networks within the limits: the argmax, the process best, and draws.

    Decisions that a network does not contain have their first operation.
    """
    nesting = Nesting.of(search.space)
    proposals: dict[Architecture, Source] = {nesting.canonical(search.argmax()): "argmax"}
    if search.process_best is not None:
        proposals.setdefault(nesting.canonical(search.process_best.architecture), "process best")
    for architecture in draw_within(search, count, random):
        if len(proposals) < count:
            proposals.setdefault(architecture, "draw")
    return proposals


def draw_within(search: Search, count: int, random: torch.Generator) -> list[Architecture]:
    """Draw different networks from p_theta, of which those within the limits of the search are kept.

    Where a limit is tight, most draws miss it. So they come from the distribution next to p_theta whose expected
    costs are within the limits, and there are more of them; the answer is what is left where all miss.
    """
    budget, nesting = search.policy.budget, Nesting.of(search.space)
    if not budget.limits:
        drawn = draw_different(search.distribution, count, random, nesting)
        return [search.space.architecture(one) for one in drawn]
    drawn = draw_different(budget.nearest_within(search.distribution), _SPARE * count, random, nesting)
    within = [one for one in map(search.space.architecture, drawn) if budget.allows(one)]
    return within[:count] or [search.argmax()]


def draw_different(
    distribution: Distribution, count: int, random: torch.Generator, nesting: Nesting | None = None
) -> Tensor:
    """Draw from p_theta one after the other without replacement: one-hot [draws, decisions, candidates].

    Gives `count` draws, or all there are, however peaked theta is; drawing until something new comes up could
    take forever. The k largest of log p(a) + Gumbel noise are k such draws. A part of an architecture stands for
    the largest among all that begin with it, so k parts at a time are enough (stochastic beam search, Kool et al.
    2019, https://arxiv.org/abs/1903.06059).

    nesting: of the space, where some architectures are the same network. Then different networks are drawn, each
        as likely as all its architectures together; decisions that it does not contain have their first operation.
    """
    log_p = noisy = torch.zeros(1, dtype=torch.float64)
    rows = distribution.logits.detach().double().log_softmax(-1)
    first = torch.full_like(rows[0], -torch.inf).index_fill(0, torch.tensor(0), 0.0)
    chosen = torch.zeros(1, *distribution.logits.shape)
    for number in range(len(rows)) if nesting is None else nesting.order:
        row = rows[number]
        if nesting is not None:
            row = torch.where(nesting.contains(number, chosen)[:, None], row, first)
        longer = log_p[:, None] + row
        scores = _with_maximum(Distribution(longer).perturbed(random), noisy[:, None]).flatten()
        places = scores.topk(min(count, int(scores.isfinite().sum()))).indices
        log_p, noisy = longer.flatten()[places], scores[places]
        parts, column = places // rows.shape[-1], places % rows.shape[-1]
        chosen = chosen[parts]
        chosen[:, number] = nn.functional.one_hot(column, rows.shape[-1]).to(chosen.dtype)
    return chosen


def _with_maximum(noisy: Tensor, maximum: Tensor) -> Tensor:
    """Gumbel variables given each row's largest: -log(e^-maximum - e^-largest + e^-noisy), without overflow."""
    largest = noisy.max(-1, keepdim=True).values
    v = maximum - noisy + torch.log1p(-torch.exp(noisy - largest))
    return maximum - v.clamp_min(0) - torch.log1p(torch.exp(-v.abs()))

"""The front: the most likely architecture for every amount of a cost, from the least to what nobody limits."""

from collections.abc import Iterable
from dataclasses import dataclass

from advnas.answers.shared_loss import SharedLoss
from advnas.architecture import Architecture
from advnas.arguments import check_count, did_you_mean
from advnas.costs import Cost, cheapest, operations_of, parameters
from advnas.costs.cost import MEASURED, how_to_make
from advnas.distribution import Distribution
from advnas.search import Search
from advnas.task import Task


@dataclass(frozen=True)
class FrontPoint:
    """The most likely architecture within a limit.

    cost: what it costs itself, at most the limit. log_likelihood: of p_theta, in nats. loss: with the shared
    weights, where there was a task to judge by.
    """

    limit: float
    architecture: Architecture
    cost: float
    log_likelihood: float
    loss: float | None = None


def front(search: Search, cost: Cost | str, *, points: int = 20, task: Task | None = None) -> list[FrontPoint]:
    """Trade likelihood against a cost: the answers for evenly spaced limits, the least cost first.

    The other limits of the search hold for all of them.

    Args:
        search: whose theta decides what is likely.
        cost: one of `advnas.costs`, or the name of a cost of the search, or "parameters".
        points: how many limits; equal answers are told once.
        task: judge every answer by its validation data and the shared weights too.
    """
    check_count("points", points, least=2)
    known = [limit.cost for limit in search.policy.budget.limits]
    cost = _found(search, cost, known) if isinstance(cost, str) else cost
    others = {
        limit.cost.name: limit.amount for limit in search.policy.budget.limits if limit.cost.name != cost.name
    }
    least = cheapest(cost, operations_of(search.space), search.policy.budget.without(cost.name))
    assert least is not None, "the limits of a search can be met"
    low, high = cost.of(least), cost.of(search.argmax(others))
    judged = None if task is None else SharedLoss(search, task.validation, task.loss)
    found: dict[Architecture, FrontPoint] = {}
    for number in range(points):
        most = max(low, high - (high - low) * (points - 1 - number) / (points - 1))  # which may round below low
        one = search.argmax({**others, cost.name: most}, costs=[*known, cost]) if most > 0 else least
        loss = None if judged is None else judged.mean(one)
        found.setdefault(one, FrontPoint(most, one, cost.of(one), _log_likelihood(search, one), loss))
    return list(found.values())


def _found(search: Search, name: str, known: Iterable[Cost]) -> Cost:
    names = {cost.name: cost for cost in known}
    if name in names:
        return names[name]
    if name == "parameters":
        return parameters(search.space)
    meant = did_you_mean(name, sorted({*names, "parameters", *MEASURED} - {name}))
    raise ValueError(f"The search has no cost {name!r}{meant}. Pass the cost itself: {how_to_make(name)}.")


def _log_likelihood(search: Search, architecture: Architecture) -> float:
    logits = Distribution(search.distribution.logits.double()).logits.log_softmax(-1)
    return float(logits[search.space.one_hot(architecture).bool()].sum())

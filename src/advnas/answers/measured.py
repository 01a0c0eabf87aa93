"""An answer whose latency is measured once more, as a whole, until it is within the limit."""

from collections.abc import Callable
from dataclasses import dataclass

from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.costs import Infeasible, Limit, whole_latency
from advnas.costs.observation import Example
from advnas.search import Search

_MARGIN = 0.98  # of what is left after a miss, so that the same noise does not decide the next round


@dataclass(frozen=True)
class Measured:
    """The answer, its latency in ms as predicted and as measured, and how many rounds that took.

    within: whether the measured latency is within the limit; if not, the rounds ran out, or nothing faster exists.
    """

    architecture: Architecture
    predicted: float
    measured: float
    limit: float
    rounds: int

    @property
    def within(self) -> bool:
        """Whether the measured latency is within the limit."""
        return self.measured <= self.limit

    def __str__(self) -> str:
        difference = 100 * (self.measured / self.predicted - 1)
        told = f"predicted {self.predicted:.3g} ms, measured {self.measured:.3g} ms ({difference:+.0f} %)"
        verdict = "within" if self.within else "NOT within"
        return f"{told}: {verdict} the limit of {self.limit:.3g} ms after {self.rounds} round(s)"


def measure_answer(search: Search, example: Example, *, rounds: int = 5, repeats: int = 10) -> Measured:
    """Derive the answer of a search with a limit of latency, measure it, and tighten the limit until it holds.

    Args:
        search: with a limit named "latency".
        example: what the network is called with.
        rounds: answers that are measured at most.
        repeats: how often each is measured; the median counts.

    Returns:
        The first answer within the limit; or the fastest of those that were measured.
    """
    check_count("rounds", rounds)
    limits = {limit.cost.name: limit for limit in search.policy.budget.limits}
    if "latency" not in limits:
        raise ValueError(
            f"The search has no limit of latency, only of {', '.join(limits) or 'nothing'}. Write Search(..., "
            "limit={'latency': '5ms'}, costs=[advnas.costs.latency(space, example)])."
        )
    amounts = {name: one.amount for name, one in limits.items()}
    return tighten(
        lambda most: search.argmax({**amounts, "latency": most}),
        lambda answer: whole_latency(search.derive(answer), example, repeats=repeats),
        limits["latency"],
        rounds=rounds,
    )


def tighten(
    answer_within: Callable[[float], Architecture],
    measure: Callable[[Architecture], float],
    limit: Limit,
    *,
    rounds: int,
) -> Measured:
    """Ask for answers within less and less of a predicted cost, until one is measured to be within the limit.

    Args:
        answer_within: gives the answer within an amount, or raises Infeasible.
        measure: what an answer really costs.
        limit: of the cost that is predicted.
        rounds: answers that are measured at most.
    """
    amount, tried = limit.amount, list[Measured]()
    for number in range(1, rounds + 1):
        try:
            answer = answer_within(amount)
        except Infeasible:
            break
        found, predicted = measure(answer), limit.cost.of(answer)
        tried.append(Measured(answer, predicted, found, limit.amount, number))
        if tried[-1].within:
            return tried[-1]
        amount = min(amount, predicted) * min(limit.amount / found, 1.0) * _MARGIN
    return min(tried, key=lambda one: one.measured)

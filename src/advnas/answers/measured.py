"""An answer whose latency is measured once more, as a whole, until it is within the limit."""

from dataclasses import dataclass

from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.costs import Infeasible, whole_latency
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
    cost, limit = limits["latency"].cost, limits["latency"].amount
    amounts, tried = {name: one.amount for name, one in limits.items()}, list[Measured]()
    for number in range(1, rounds + 1):
        try:
            answer = search.argmax(amounts)
        except Infeasible:
            break
        found = whole_latency(search.derive(answer), example, repeats=repeats)
        tried.append(Measured(answer, cost.of(answer), found, limit, number))
        if tried[-1].within:
            return tried[-1]
        amounts["latency"] = min(amounts["latency"], cost.of(answer)) * min(limit / found, 1.0) * _MARGIN
    return min(tried, key=lambda one: one.measured)

"""Limits of a study: what they name, what the space can do, and what an answer has spent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from advnas import costs
from advnas.answers import front, measure_answer
from advnas.architecture import Architecture
from advnas.arguments import did_you_mean
from advnas.costs import Cost, cheapest, dearest, parse_amount
from advnas.costs.amounts import split_limits
from advnas.costs.observation import Example
from advnas.distribution import Distribution
from advnas.search import Search
from advnas.space import SearchSpace

Inputs = Callable[[], Example]

UNITS = {"parameters": "", "multiply_adds": "", "latency": "ms", "memory": "bytes"}
"""The costs that a limit on the command line can name."""
_POINTS = 20


def read_limits(texts: Sequence[str]) -> dict[str, float]:
    """Read limits such as "parameters=100k" and "latency=5ms".

    Raises:
        ValueError: a name, a unit or an amount is not known.
    """
    limits = split_limits(texts)
    for name in limits:
        if name not in UNITS:
            raise ValueError(
                f"There is no cost {name!r}{did_you_mean(name, UNITS)}. Limit one of {', '.join(UNITS)}; for a "
                "table of your own, write advnas.Search(..., limit=..., costs=[advnas.costs.table(...)])."
            )
    return {name: parse_amount(text, name, UNITS[name]) for name, text in limits.items()}


def find_cost(name: str, space: SearchSpace, example: Inputs) -> Cost:
    """Find what every operation costs. example: makes the inputs of the network, where the cost needs them."""
    if name == "parameters":
        return costs.parameters(space)
    if name == "multiply_adds":
        return costs.multiply_adds(space, example())
    if name == "memory":
        return costs.memory(space, example())
    return costs.latency(space, example(), device=space.device)


@dataclass(frozen=True)
class Range:
    """What architectures can cost: the least, the mean of uniform draws, and the most."""

    name: str
    unit: str
    least: float
    uniform: float
    largest: float
    limit: float
    note: str = ""

    def __str__(self) -> str:
        numbers = f"{self.least:,.6g} to {self.largest:,.6g} {self.unit}".strip()
        note = f" ({self.note})" if self.note else ""
        return f"{numbers}, {self.uniform:,.6g} in the mean; limit {self.limit:,.6g}: possible{note}"


def ranges(search: Search) -> list[Range]:
    """What the space of a search can cost, of every cost with a limit; the limits are possible."""
    budget = search.policy.budget
    uniform = budget.expected(Distribution(search.distribution.logits.clamp(min=0, max=0) + _padding(search)))
    found = []
    for limit in budget.limits:
        least = cheapest(limit.cost, budget.decisions)
        assert least is not None, "without limits there is always one"
        most = limit.cost.of(dearest(limit.cost, budget.decisions))
        cost, name = limit.cost, limit.cost.name
        found.append(Range(name, cost.unit, cost.of(least), uniform[name], most, limit.amount, cost.note))
    return found


def _padding(search: Search) -> Tensor:
    logits = search.distribution.logits
    return logits.masked_fill(logits.isfinite(), 0.0)


def spend(
    search: Search, by: str, architecture: Architecture, example: Inputs
) -> tuple[Architecture, list[dict[str, Any]]]:
    """Tell what an answer costs, of every limit; under a limit of latency it is measured again, and may change.

    Args:
        search: that is over.
        by: how the answer was taken.
        architecture: the answer.
        example: makes the inputs of the network.
    """
    limits, notes = search.policy.budget.limits, dict[str, str]()
    amounts = dict[str, float]()
    if by == "argmax" and any(limit.cost.name == "latency" for limit in limits):
        measured = measure_answer(search, example())
        architecture, notes["latency"] = measured.architecture, str(measured)
        amounts["latency"] = measured.measured
    spent = []
    for limit in limits:
        cost, name = limit.cost, limit.cost.name
        points = front(search, cost, points=_POINTS) if by == "argmax" else []
        spent.append(
            {
                "name": name,
                "unit": cost.unit,
                "limit": limit.amount,
                "amount": amounts.get(name, cost.of(architecture)),
                "front": [[point.cost, point.log_likelihood] for point in points],
                "note": notes.get(name, cost.note),
            }
        )
    return architecture, spent

"""The best architecture within limits, exactly: a multiple-choice knapsack, solved by HiGHS."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advnas.architecture import Architecture
from advnas.costs.cost import Cost
from advnas.structure import Condition

_SCALE = 1e4  # HiGHS may miss a bound by 1e-6 and the optimum by 1e-6; this makes both small beside the numbers
_ROUNDS = 1000  # solutions that lie within HiGHS's tolerance of a limit, and outside the limit
_NAMED = 3  # decisions that a message names

Values = Mapping[tuple[str, str], float]
"""What every operation is worth, by (decision, operation)."""


Row = Mapping[int, float]
"""Coefficients by the number of a variable."""


class Between(NamedTuple):
    """low <= row x <= high, for every row."""

    rows: Sequence[Row]
    low: float
    high: float


class Infeasible(ValueError):
    """No architecture is within the limits.

    least: the least that each cost can be, by name. binding: the decisions that cost the most in the cheapest
    architecture, dearest first.
    """

    def __init__(self, message: str, least: Mapping[str, float], binding: Sequence[str]) -> None:
        super().__init__(message)
        self.least, self.binding = dict(least), tuple(binding)


@dataclass(frozen=True)
class Limit:
    """At most so much of a cost."""

    cost: Cost
    amount: float

    def allows(self, architecture: Mapping[str, str]) -> bool:
        """Whether an architecture costs no more."""
        return self.cost.of(architecture) <= self.amount


def most_valuable(values: Values, decisions: Mapping[str, Sequence[str]], limits: Sequence[Limit]) -> Architecture:
    """Return the architecture with the largest sum of values within all limits.

        max sum_ij v_ij x_ij    over x in {0, 1},    sum_j x_ij = 1,    c_k(x) <= limit_k

    A nested operation with condition S costs y_S >= sum over S of x - (|S| - 1): 1 where all of S is chosen.

    Args:
        values: of every operation; log probabilities give the most likely architecture.
        decisions: the operations of every decision.
        limits: all of them hold for the result, in exact arithmetic of the costs.

    Raises:
        Infeasible: there is no such architecture.
    """
    free = _free(values, decisions)
    if all(limit.allows(free) for limit in limits):
        return free
    program = _Program(decisions, [limit.cost for limit in limits])
    found = program.solve(program.of_values(values), limits)
    if found is None:
        raise explain(decisions, limits)
    return found


def cheapest(
    cost: Cost, decisions: Mapping[str, Sequence[str]], limits: Sequence[Limit] = ()
) -> Architecture | None:
    """Return the architecture of the least cost within limits; None if there is none."""
    program = _Program(decisions, [cost, *(limit.cost for limit in limits)])
    return program.solve(-program.of_cost(cost), limits)


def dearest(cost: Cost, decisions: Mapping[str, Sequence[str]]) -> Architecture:
    """Return the architecture of the largest cost."""
    program = _Program(decisions, [cost])
    found = program.solve(program.of_cost(cost), [])
    assert found is not None, "without limits there is always one"
    return found


def explain(decisions: Mapping[str, Sequence[str]], limits: Sequence[Limit]) -> Infeasible:
    """Say why no architecture is within the limits: the least possible cost, and the decisions that bind."""
    lowest = {limit.cost.name: cheapest(limit.cost, decisions) for limit in limits}
    least = {limit.cost.name: _cost(limit, lowest[limit.cost.name]) for limit in limits}
    for limit in limits:
        cost, name = limit.cost, limit.cost.name
        if least[name] > limit.amount:
            found = lowest[name]
            assert found is not None
            binding = _binding(cost, found)
            what = f"The least {_plain(name)} of any architecture is {cost.told(least[name])}"
            reason = f"{what}, and the limit is {cost.told(limit.amount)}. {_told(cost, found, binding)}"
            return Infeasible(reason, least, binding)
    return _together(decisions, limits, least)


def _together(
    decisions: Mapping[str, Sequence[str]], limits: Sequence[Limit], least: Mapping[str, float]
) -> Infeasible:
    """Every limit can be met alone, but not all of them at once."""
    others, limit, found = _clash(decisions, limits)
    held = " and ".join(f"{_plain(one.cost.name)} within {one.cost.told(one.amount)}" for one in others)
    if found is None:
        return Infeasible(f"No architecture has {held}; each of these limits can be met alone.", least, ())
    amount, binding = limit.cost.told(limit.cost.of(found)), _binding(limit.cost, found)
    message = (
        f"With {held}, the least {_plain(limit.cost.name)} of any architecture is {amount}, and the limit is "
        f"{limit.cost.told(limit.amount)}. {_told(limit.cost, found, binding)}"
    )
    return Infeasible(message, least, binding)


def _clash(
    decisions: Mapping[str, Sequence[str]], limits: Sequence[Limit]
) -> tuple[Sequence[Limit], Limit, Architecture | None]:
    """Limits, the next one, which cannot be met with them, and the least costly architecture by it within them."""
    for number in range(1, len(limits)):
        limit, others = limits[number], limits[:number]
        found = cheapest(limit.cost, decisions, others)
        if found is None or not limit.allows(found) or number == len(limits) - 1:
            return others, limit, found
    raise AssertionError("a single limit that cannot be met is told before")


def _cost(limit: Limit, architecture: Architecture | None) -> float:
    assert architecture is not None, "without limits there is always one"
    return limit.cost.of(architecture)


def _binding(cost: Cost, architecture: Architecture) -> list[str]:
    """The decisions that cost something, dearest first; a nested operation counts for those around it too."""
    chosen, shares = set(architecture.items()), dict.fromkeys(architecture, 0.0)
    for condition, value in cost.terms.items():
        if condition <= chosen:
            for decision, _ in condition:
                shares[decision] += value
    return sorted((name for name, share in shares.items() if share > 0), key=lambda name: -shares[name])


def _told(cost: Cost, architecture: Architecture, binding: Sequence[str]) -> str:
    named = ", ".join(f"{name} (at least {architecture[name]!r})" for name in binding[:_NAMED])
    more = f" and {len(binding) - _NAMED} more" if len(binding) > _NAMED else ""
    rest = f"{cost.told(cost.constant)} are outside all decisions"
    return f"{rest}; the dearest decisions are {named}{more}." if binding else f"{rest}."


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _free(values: Values, decisions: Mapping[str, Sequence[str]]) -> Architecture:
    """The best without limits; of equal operations the first."""
    return Architecture(
        {name: max(operations, key=lambda one: values[name, one]) for name, operations in decisions.items()}
    )


@dataclass
class _Program:
    """The rows and columns that all questions about some costs have in common."""

    decisions: Mapping[str, Sequence[str]]
    costs: Sequence[Cost]
    places: dict[tuple[str, str], int] = field(init=False)
    nested: dict[Condition, int] = field(init=False)

    def __post_init__(self) -> None:
        pairs = [(name, operation) for name, operations in self.decisions.items() for operation in operations]
        self.places = {pair: number for number, pair in enumerate(pairs)}
        found = dict.fromkeys(when for cost in self.costs for when in cost.terms if len(when) > 1)
        self.nested = {when: len(pairs) + number for number, when in enumerate(found)}

    def of_values(self, values: Values) -> NDArray[np.float64]:
        """The objective of a sum of values."""
        objective = np.zeros(len(self.places) + len(self.nested))
        for pair, place in self.places.items():
            objective[place] = values[pair]
        return objective

    def of_cost(self, cost: Cost) -> NDArray[np.float64]:
        """The objective of a cost, without its constant."""
        objective = np.zeros(len(self.places) + len(self.nested))
        for when, value in cost.terms.items():
            objective[self.nested[when] if len(when) > 1 else self.places[next(iter(when))]] += value
        return objective

    def solve(self, objective: NDArray[np.float64], limits: Sequence[Limit]) -> Architecture | None:
        """The architecture with the largest objective within the limits; None if there is none."""
        from scipy.optimize import Bounds, milp  # type: ignore[import-untyped]  # here, since it takes a second

        constraints = [*self._structure(), *map(self._below, limits)]
        size = len(self.places) + len(self.nested)
        integrality = np.array([1] * len(self.places) + [0] * len(self.nested))
        largest = np.abs(objective).max() or 1.0
        for _ in range(_ROUNDS):
            with _silence():
                solution = milp(
                    -objective * (_SCALE / largest),
                    integrality=integrality,
                    bounds=Bounds(np.zeros(size), np.ones(size)),
                    constraints=[self._constraint(one) for one in constraints],
                    options={"mip_rel_gap": 0.0},
                )
            if solution.x is None:
                return None
            found = self._architecture(solution.x)
            if all(limit.allows(found) for limit in limits):
                return found
            constraints.append(self._other_than(found))
        raise ArithmeticError(f"{_ROUNDS} architectures lie within rounding of the limits, and outside them.")

    def _structure(self) -> Iterable[Between]:
        """One operation per decision; y is 1 where all of a condition is chosen, and may be 0 elsewhere.

        An objective that wants y to be large gets at most what the operations of the condition allow.
        """
        rows = [{self.places[name, one]: 1.0 for one in own} for name, own in self.decisions.items()]
        yield Between(rows, 1.0, 1.0)
        for when, place in self.nested.items():
            yield Between([{place: -1.0, **{self.places[pair]: 1.0 for pair in when}}], -np.inf, len(when) - 1)
            yield Between([{place: 1.0, self.places[pair]: -1.0} for pair in when], -np.inf, 0.0)

    def _below(self, limit: Limit) -> Between:
        cost = self.of_cost(limit.cost)
        scale = _SCALE / max(limit.amount, 1e-300)
        row = {int(place): cost[place] * scale for place in cost.nonzero()[0]}
        return Between([row], -np.inf, (limit.amount - limit.cost.constant) * scale)

    def _other_than(self, architecture: Architecture) -> Between:
        row = {self.places[pair]: 1.0 for pair in architecture.items()}
        return Between([row], -np.inf, len(row) - 1)

    def _constraint(self, between: Between) -> object:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import csr_array  # type: ignore[import-untyped]

        entries = [(line, place, value) for line, row in enumerate(between.rows) for place, value in row.items()]
        lines, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
        shape = (len(between.rows), len(self.places) + len(self.nested))
        return LinearConstraint(csr_array((values, (lines, columns)), shape=shape), between.low, between.high)

    def _architecture(self, solution: NDArray[np.float64]) -> Architecture:
        return Architecture(
            {
                name: max(operations, key=lambda one: solution[self.places[name, one]])
                for name, operations in self.decisions.items()
            }
        )


@contextmanager
def _silence() -> Iterator[None]:
    """Keep lines that HiGHS prints, whatever it is told, out of what people and programs read."""
    if sys.stdout is None:  # closed when the process began: there is nobody to read
        yield
        return
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)

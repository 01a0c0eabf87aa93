"""Cost: what an architecture costs, as a sum over the operations that it runs."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from advnas.structure import ALWAYS, Condition


@dataclass(frozen=True)
class Cost:
    """c(a) = constant + the sum of all terms whose condition holds in a.

    A term is a non-negative number per operation of a decision. The condition of a nested operation names the
    operations around it as well, so that it costs nothing where it is not reached. Tied choices are one decision:
    their numbers are added up.

    Args:
        name: what limits call it, such as "parameters".
        unit: of all numbers, such as "ms"; empty for a count.
        constant: of what is in every architecture.
        terms: by condition.
        note: how the numbers were found, where people should know.

    Raises:
        ValueError: a number is negative or not finite.
    """

    name: str
    unit: str
    constant: float
    terms: Mapping[Condition, float]
    note: str = ""

    def __post_init__(self) -> None:
        for condition, value in {ALWAYS: self.constant, **self.terms}.items():
            if not math.isfinite(value) or value < 0:
                raise ValueError(
                    f"The {self.name} of {describe(condition)} must be a finite number of at least 0, got {value}."
                )

    def of(self, architecture: Mapping[str, str]) -> float:
        """Return the cost of an architecture, in the unit of the cost."""
        chosen = set(architecture.items())
        return math.fsum([self.constant, *(value for when, value in self.terms.items() if when <= chosen)])

    def told(self, amount: float) -> str:
        """An amount for people: with thousands' separators, and the unit."""
        number = f"{amount:,.0f}" if float(amount).is_integer() else f"{amount:,.4g}"
        return f"{number} {self.unit or self.name.replace('_', '-')}"

    def check_fits(self, decisions: Mapping[str, Iterable[str]]) -> None:
        """Raise ValueError if the cost is of another space.

        Args:
            decisions: the operations of every decision of the space at hand.
        """
        known = {(name, operation) for name, operations in decisions.items() for operation in operations}
        named = {one for condition in self.terms for one in condition}
        strange, missing = sorted(named - known), sorted(known - named)
        if strange or missing:
            what = f"knows {_pair(strange[0])}" if strange else f"does not know {_pair(missing[0])}"
            raise ValueError(
                f"The cost {self.name!r} is of another space: it {what}. Make it from the space that is searched, "
                f"for example advnas.costs.{self.name}(advnas.SearchSpace(model), ...)."
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same cost."""
        terms = [[[list(one) for one in sorted(condition)], value] for condition, value in self.terms.items()]
        return {
            "name": self.name,
            "unit": self.unit,
            "constant": self.constant,
            "terms": terms,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            terms = {frozenset((d, o) for d, o in when): float(value) for when, value in content["terms"]}
            name, unit, note = (str(content[key]) for key in ("name", "unit", "note"))
            return cls(name, unit, float(content["constant"]), terms, note)
        except (KeyError, TypeError) as error:
            raise ValueError(f"This is no cost: {error!r}.") from error


MEASURED = ("multiply_adds", "latency", "memory")
"""The costs that a function of that name in `advnas.costs` makes of a space and an example."""


def how_to_make(name: str) -> str:
    """What to write for a cost that is not there."""
    if name in MEASURED:
        return f"advnas.costs.{name}(space, example)"
    made = ", ".join(f"advnas.costs.{one}(space, example)" for one in MEASURED)
    return f"one of {made}, or numbers of your own, advnas.costs.table(space, {{...}}, name={name!r})"


def describe(condition: Condition) -> str:
    """A condition in words."""
    return " within ".join(_pair(one) for one in sorted(condition)) or "the rest of the network"


def _pair(one: tuple[str, str]) -> str:
    return f"operation {one[1]!r} of decision {one[0]!r}"

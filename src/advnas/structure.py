"""Where the modules of a space stand: which operations must be chosen for them to be a part of the network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, islice
from typing import Self

import torch
from torch import Tensor, nn

from advnas.architecture import Architecture
from advnas.choice import Choice
from advnas.space import SearchSpace
from advnas.width import Outlines

Condition = frozenset[tuple[str, str]]
"""(decision, operation) pairs that must all be chosen: an operation, and those that it lies inside."""

ALWAYS: Condition = frozenset()


def modules_of(space: SearchSpace) -> Iterator[tuple[nn.Module, Condition]]:
    """Every module of the parent network, without its children, and the condition under which it is there.

    A module that stands in several places comes once per place.
    """
    names, outlines = names_of(space), Outlines()

    def visit(module: nn.Module, condition: Condition) -> Iterator[tuple[nn.Module, Condition]]:
        yield module, condition
        if not isinstance(module, Choice):
            for child in module.children():
                yield from visit(child, condition)
            return
        for operation, candidate in zip(module.operations, module.candidates, strict=True):
            inner = condition | {(names[module], operation)}
            if possible(inner):  # widths share weights, of which each uses a part
                yield from visit(outlines.of(candidate), inner)

    yield from visit(space.model, ALWAYS)


def names_of(space: SearchSpace) -> dict[nn.Module, str]:
    """The name of the decision of every choice."""
    return {choice: decision.name for decision in space.decisions for choice in decision.choices}


def operations_of(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    """The operations of every decision, in the order of theta."""
    return {decision.name: decision.operations for decision in space.decisions}


def possible(condition: Condition) -> bool:
    """Whether no decision is asked to be two operations at once."""
    return len({decision for decision, _ in condition}) == len(condition)


def exclusive(conditions: Iterable[Condition]) -> list[Condition] | None:
    """Conditions of which at most one can hold, and one does where any of the given ones does.

    None: some can hold together, so that what depends on any of them is no sum over operations.
    """
    given = set(conditions)
    weakest = [one for one in given if not any(other < one for other in given)]
    return None if any(possible(one | other) for one, other in combinations(weakest, 2)) else weakest


def places_of(space: SearchSpace) -> list[Condition]:
    """The condition of every operation of every decision, in every place where it stands."""
    names = names_of(space)
    found = (
        condition | {(names[module], operation)}
        for module, condition in modules_of(space)
        if isinstance(module, Choice)
        for operation in module.operations
    )
    return list(dict.fromkeys(filter(possible, found)))


def covering(space: SearchSpace) -> Iterator[Architecture]:
    """Few architectures that together run every operation in every place where it stands."""
    left = places_of(space)
    first = {decision.name: decision.operations[0] for decision in space.decisions}
    while left:
        wanted = ALWAYS
        for condition in left:
            wanted = wanted | condition if possible(wanted | condition) else wanted
        left = [condition for condition in left if not condition <= wanted]
        yield Architecture({**first, **dict(wanted)})


Nested = Mapping[str, Sequence[Mapping[str, str]]]
"""By decision that is not in every network: operations of others; all those of one item put it into the network."""


def part_of(nested: Nested, answer: Mapping[str, str]) -> list[str]:
    """The decisions that the network of an answer contains; the others make no difference to it."""
    return [name for name in answer if _is_part(nested, name, answer)]


def _is_part(nested: Nested, name: str, answer: Mapping[str, str]) -> bool:
    """Whether a network contains a decision; the operations of those that it lies inside are enough to tell."""
    alternatives = nested.get(name)
    return alternatives is None or any(
        all(answer.get(outer) == operation for outer, operation in one.items()) for one in alternatives
    )


@dataclass(frozen=True)
class Nesting:
    """Which decisions lie inside candidates of others, so that different architectures may be the same network.

    Args:
        space: whose decisions they are.
        nested: those that are not in every network.
    """

    space: SearchSpace
    nested: Nested

    @classmethod
    def of(cls, space: SearchSpace) -> Self:
        """Find the nested decisions of a space."""
        names, found = names_of(space), dict[str, dict[Condition, None]]()
        for module, condition in modules_of(space):
            if isinstance(module, Choice):
                found.setdefault(names[module], {})[condition] = None
        nested = {name: [dict(sorted(one)) for one in own] for name, own in found.items() if ALWAYS not in own}
        try:
            TopologicalSorter(_around(nested)).prepare()
        except CycleError:  # tied decisions, each inside the other: copies of a network count as different ones
            nested = {}
        return cls(space, nested)

    @cached_property
    def order(self) -> list[int]:
        """The rows of theta, each behind those of the decisions that it lies inside."""
        names = [decision.name for decision in self.space.decisions]
        if not self.nested:
            return list(range(len(names)))
        around: dict[str, set[str]] = {name: set() for name in names} | _around(self.nested)
        return [names.index(name) for name in TopologicalSorter(around).static_order()]

    def contains(self, row: int, chosen: Tensor) -> Tensor:
        """Whether networks contain a decision.

        Args:
            row: of the decision.
            chosen: one-hot [networks, decisions, candidates]; decisions inside this one may still be zeros.

        Returns:
            bool [networks].
        """
        alternatives = self._places.get(row)
        if alternatives is None:
            return torch.ones(len(chosen), dtype=torch.bool)
        return torch.stack([chosen[:, rows, columns].bool().all(-1) for rows, columns in alternatives]).any(0)

    @cached_property
    def _places(self) -> dict[int, list[tuple[list[int], list[int]]]]:
        """The same as `nested`, as rows and columns of theta."""
        rows = {decision.name: row for row, decision in enumerate(self.space.decisions)}
        operations = operations_of(self.space)
        return {
            rows[name]: [([rows[d] for d in one], [operations[d].index(o) for d, o in one.items()]) for one in own]
            for name, own in self.nested.items()
        }

    def canonical(self, answer: Mapping[str, str]) -> Architecture:
        """One architecture for all that are the same network: other decisions have their first operation."""
        part = set(part_of(self.nested, answer))
        operations = operations_of(self.space)
        return Architecture({name: answer[name] if name in part else own[0] for name, own in operations.items()})

    def count(self, at_most: int) -> int:
        """How many different networks there are, counted up to a number."""
        if not self.nested:
            return min(self.space.size, at_most)
        found: list[dict[str, str]] = [{}]
        for row in self.order:
            name, operations = self.space.decisions[row].name, self.space.decisions[row].operations
            longer = (
                one | {name: operation}
                for one in found
                for operation in (operations if _is_part(self.nested, name, one) else operations[:1])
            )
            found = list(islice(longer, at_most))
        return len(found)


def _around(nested: Nested) -> dict[str, set[str]]:
    """The decisions that each nested one lies inside, in any of its places."""
    return {name: {outer for one in own for outer in one} for name, own in nested.items()}

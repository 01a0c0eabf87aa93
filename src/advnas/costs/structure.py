"""Where the modules of a space stand: which operations must be chosen for them to be a part of the network."""

from collections.abc import Iterable, Iterator
from itertools import combinations

from torch import nn

from advnas.architecture import Architecture
from advnas.choice import Choice
from advnas.costs.cost import ALWAYS, Condition
from advnas.space import SearchSpace
from advnas.width import Sliced


def modules_of(space: SearchSpace) -> Iterator[tuple[nn.Module, Condition]]:
    """Every module of the parent network, without its children, and the condition under which it is there.

    A module that stands in several places comes once per place.
    """
    names = names_of(space)

    def visit(module: nn.Module, condition: Condition) -> Iterator[tuple[nn.Module, Condition]]:
        yield module, condition
        if not isinstance(module, Choice):
            for child in module.children():
                yield from visit(child, condition)
            return
        for operation, candidate in zip(module.operations, module.candidates, strict=True):
            inner = condition | {(names[module], operation)}
            if possible(inner):  # widths share weights, of which each uses a part
                yield from visit(candidate.outline() if isinstance(candidate, Sliced) else candidate, inner)

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

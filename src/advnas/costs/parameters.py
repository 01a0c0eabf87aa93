"""The parameters of an architecture: how many numbers its network learns."""

from collections import Counter, defaultdict

from torch import nn

from advnas.costs.cost import ALWAYS, Condition, Cost, describe
from advnas.costs.structure import exclusive, modules_of, places_of
from advnas.space import SearchSpace


def parameters(space: SearchSpace) -> Cost:
    """Count the parameters of every operation; exact for every architecture of the space.

    Args:
        space: nothing is run.

    Raises:
        ValueError: operations of different decisions share weights, so that no sum over operations is right.
    """
    counts = Counter[Condition](dict.fromkeys(places_of(space), 0))
    for weight, conditions in owners_of(space).items():
        for condition in conditions:
            counts[condition] += weight.numel()
    return Cost("parameters", "", counts.pop(ALWAYS, 0), dict(counts))


def owners_of(space: SearchSpace) -> dict[nn.Parameter, list[Condition]]:
    """The conditions under which each parameter is a part of the network, of which one holds at a time.

    Raises:
        ValueError: as in `parameters`.
    """
    places = defaultdict[nn.Parameter, list[Condition]](list)
    for module, condition in modules_of(space):
        for weight in module.parameters(recurse=False):
            places[weight].append(condition)
    owners = {}
    for weight, conditions in places.items():
        found = exclusive(conditions)
        if found is None:
            both = " and ".join(describe(one) for one in sorted(set(conditions), key=sorted)[:2])
            raise ValueError(
                f"Weights of shape {list(weight.shape)} are shared by {both}, so the parameters of an architecture "
                "are no sum over its operations. Give each its own, or write costs.table(space, {...})."
            )
        owners[weight] = found
    return owners

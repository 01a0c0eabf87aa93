"""The parameters of an architecture: how many numbers its network learns."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from advnas.costs.cost import Cost, describe
from advnas.space import SearchSpace
from advnas.structure import ALWAYS, Condition, exclusive, modules_of, places_of


def parameters(space: SearchSpace) -> Cost:
    """Count the parameters of every operation; exact for every architecture of the space.

    Args:
        space: nothing is run.

    Raises:
        ValueError: operations of different decisions share weights, so that no sum over operations is right.
    """
    counts = Counter[Condition](dict.fromkeys(places_of(space), 0))
    for weight, conditions in owners_of(space, _parameters).items():
        for condition in conditions:
            counts[condition] += weight.numel()
    return Cost("parameters", "", counts.pop(ALWAYS, 0), dict(counts))


def _parameters(module: nn.Module) -> Iterable[Tensor]:
    return module.parameters(recurse=False)


def owners_of(
    space: SearchSpace, tensors_of: Callable[[nn.Module], Iterable[Tensor]]
) -> dict[Tensor, list[Condition]]:
    """The conditions under which each tensor is a part of the network, of which one holds at a time.

    Args:
        space: whose modules are looked at.
        tensors_of: those of a module, without its children.

    Raises:
        ValueError: as in `parameters`.
    """
    places = defaultdict[Tensor, list[Condition]](list)
    for module, condition in modules_of(space):
        for weight in tensors_of(module):
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

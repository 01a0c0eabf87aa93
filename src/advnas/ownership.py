"""Which weights and normalisation layers belong to which candidate, and which to none."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from advnas.choice import Choice


@dataclass(frozen=True)
class Ownership:
    """What belongs to one candidate of a decision, or to none: weights, and normalisation layers."""

    weights: list[nn.Parameter] = field(default_factory=list)
    norms: list[_NormBase] = field(default_factory=list)


def find_owners(
    model: nn.Module, choices: Iterable[Iterable[Choice]]
) -> tuple[Ownership, dict[tuple[int, ...], Ownership]]:
    """Sort the layers: shared ones, and those of each (decision, candidate).

    What lies in a choice inside a candidate belongs to the inner choice alone.

    Args:
        model: all of it.
        choices: those of every decision.
    """
    row_of = {choice: row for row, tied in enumerate(choices) for choice in tied}
    shared = Ownership()
    owned: dict[tuple[int, ...], Ownership] = {}

    def visit(module: nn.Module, owner: Ownership) -> None:
        owner.weights.extend(module.parameters(recurse=False))
        if isinstance(module, _NormBase):
            owner.norms.append(module)
        if isinstance(module, Choice):
            for column, candidate in enumerate(module.candidates):
                visit(candidate, owned.setdefault((row_of[module], column), Ownership()))
        else:
            for child in module.children():
                visit(child, owner)

    visit(model, shared)
    return shared, owned

"""Ownership: which modules and weights belong to which candidate of which decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from advnas.choice import Choice


@dataclass(frozen=True)
class Ownership:
    """What belongs to one candidate of a decision, or to none.

    Attributes:
        weights: parameters.
        norms: normalisation layers that may keep running statistics.
        buffered: modules with buffers.
    """

    weights: list[nn.Parameter] = field(default_factory=list)
    norms: list[_NormBase] = field(default_factory=list)
    buffered: list[nn.Module] = field(default_factory=list)
    _held: list[tuple[nn.Module, dict[str, Any], tuple[Any, ...]]] = field(default_factory=list)

    def take(self, module: nn.Module) -> None:
        """Add a module, without its children."""
        self.weights.extend(module.parameters(recurse=False))
        if isinstance(module, _NormBase):
            self.norms.append(module)
        if module._buffers:
            self.buffered.append(module)
        for holder in (module._modules, module._parameters):
            if holder:
                self._held.append((module, holder, tuple(holder.values())))

    def find_changed(self) -> nn.Module | None:
        """The first module that holds other modules or parameters than it did."""
        for module, holder, before in self._held:
            if len(holder) != len(before) or not all(map(is_, holder.values(), before)):
                return module
        return None


def find_owners(
    model: nn.Module, row_of: Mapping[Choice, int]
) -> tuple[Ownership, dict[tuple[int, ...], Ownership]]:
    """Sort the modules: shared ones, and those of each (decision, candidate).

    What lies in a choice inside a candidate belongs to the inner choice alone.

    Args:
        model: a module with choices.
        row_of: the decision of every choice.
    """
    shared = Ownership()
    owned: dict[tuple[int, ...], Ownership] = {}

    def visit(module: nn.Module, owner: Ownership) -> None:
        owner.take(module)
        if isinstance(module, Choice):
            owner.take(module.candidates)
            for column, candidate in enumerate(module.candidates):
                visit(candidate, owned.setdefault((row_of[module], column), Ownership()))
        else:
            for child in module.children():
                visit(child, owner)

    visit(model, shared)
    return shared, owned

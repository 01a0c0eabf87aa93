"""Ownership: which modules and weights belong to which candidate of which decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
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
    _holders: list[tuple[nn.Module, dict[str, Any]]] = field(default_factory=list)
    _dicts: list[dict[str, Any]] = field(default_factory=list)
    _held: list[Any] = field(default_factory=list)

    def take(self, module: nn.Module) -> None:
        """Add a module, without its children."""
        self.weights.extend(module.parameters(recurse=False))
        if isinstance(module, _NormBase):
            self.norms.append(module)
        if module._buffers:
            self.buffered.append(module)
        for holder in (module._modules, module._parameters):
            if holder:
                self._holders.append((module, dict(holder)))
                self._dicts.append(holder)
                self._held.extend(holder.values())

    def find_changed(self) -> nn.Module | None:
        """The first module that holds other modules or parameters than it did."""
        now = list(chain.from_iterable(map(dict.values, self._dicts)))
        if len(now) == len(self._held) and all(map(is_, now, self._held)):
            return None
        pairs = zip(self._holders, self._dicts, strict=True)
        return next(module for (module, before), holder in pairs if not _same(before, holder))


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return before.keys() == now.keys() and all(before[name] is now[name] for name in now)


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

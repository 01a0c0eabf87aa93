"""Route: what one decision runs in one step; Trace: what became of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from advnas.gates.gate import ActiveCandidate
from advnas.gates.rivals import Rival
from advnas.gates.trees import is_weighable


@dataclass(slots=True)
class Route:
    """What one decision runs in one step, shared by the tied choices; remembers whether any of them was reached.

    gated: whether the slopes of the weights were asked for, by gates here or moved elsewhere.
    reached: whether any of them was run.
    cut: whether one of them returned something that no gradient flows through, as the zero operation does.
    calls: what each of them was called with last, without the numbers; to explain a failure.
    wrapped: whether one of them was called through DistributedDataParallel.
    """

    active: Sequence[ActiveCandidate]
    gated: bool
    shift: Tensor | None = None
    reached: bool = False
    rivals: tuple[Rival, ...] = ()
    cut: bool = False
    wrapped: bool = False
    calls: dict[Any, Any] = field(default_factory=dict)

    def add_shift(self, tensor: Tensor) -> Tensor:
        """Add the weights of the candidates that were not run (GDAS)."""
        if self.shift is None or not is_weighable(tensor):
            return tensor
        return tensor + self.shift.to(tensor.device)


@dataclass(slots=True)
class Slot:
    """Where tied choices look up what to run; one object, so that setting it once sets it for all of them."""

    route: Route | None = None


@dataclass(frozen=True)
class Trace:
    """What happened while a draw was running."""

    routes: tuple[Route, ...]

    @property
    def reached(self) -> Tensor:
        """Which decisions the forward pass came to: bool [decisions]. A nested one may lie off the drawn path."""
        return torch.tensor([route.reached for route in self.routes])

    @property
    def wrapped(self) -> bool:
        """Whether the forward pass went through DistributedDataParallel."""
        return any(route.wrapped for route in self.routes)

    @property
    def may_lack_graph(self) -> bool:
        """Whether the loss may have no graph.

        So behind a zero operation, and where gates alone could give one but the forward pass came to no choice.
        """
        came_to_none = self.routes[0].gated and not any(route.calls for route in self.routes)
        return came_to_none or any(route.cut for route in self.routes)

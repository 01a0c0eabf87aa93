"""Route: what one decision runs in one step."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from advnas.gates.gate import ActiveCandidate
from advnas.gates.rivals import Rival


@dataclass(slots=True)
class Route:
    """What one decision runs in one step, shared by the tied choices; remembers whether any of them was reached.

    gated: whether the slopes of the weights were asked for, by gates here or moved elsewhere.
    """

    active: Sequence[ActiveCandidate]
    gated: bool
    shift: Tensor | None = None
    reached: bool = False
    rivals: tuple[Rival, ...] = ()

    def add_shift(self, tensor: Tensor) -> Tensor:
        """Add the weights of the candidates that were not run (GDAS)."""
        return tensor if self.shift is None else tensor + self.shift.to(tensor.device)


@dataclass(slots=True)
class Slot:
    """Where tied choices look up what to run; one object, so that setting it once sets it for all of them."""

    route: Route | None = None

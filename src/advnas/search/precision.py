"""Reduced precision: autocast for the forward pass, and a loss scale for float16."""

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from advnas.search.device import PRECISIONS
from advnas.search.step import NonFiniteLoss, Step

if TYPE_CHECKING:
    from advnas.search.search import Search

_FIRST, _FEWEST = 2.0**16, 1.0
_GROW_AFTER = 2000  # steps without an overflow; these are the numbers of torch.amp.GradScaler

P = ParamSpec("P")


class Precision:
    """In which precision operations run that can do with less. Weights, theta and reductions stay as they are.

    float16 has no numbers below 6e-8: gradients are computed of the loss times a scale and divided by it again. A
    step that overflows is repeated with half the scale and the same draw, so none is lost.

    Args:
        name: "float32", "bfloat16" ("bf16") or "float16" ("fp16").
    """

    def __init__(self, name: str = "float32") -> None:
        if name not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {name!r}.")
        self.name, self._dtype = name, PRECISIONS[name]
        self.scale = _FIRST if self._dtype is torch.float16 else 1.0
        self._since = 0

    def computing(self, device: torch.device) -> AbstractContextManager[object]:
        """While this is open, operations run in the precision; the user's own autocast stays with float32."""
        return nullcontext() if self._dtype is None else torch.autocast(device.type, dtype=self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        return loss if self.scale == 1.0 else loss * self.scale

    def unscale(self, leaves: Iterable[Tensor]) -> None:
        """Divide the gradients of leaves by the scale."""
        if self.scale != 1.0:
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf.grad.div_(self.scale)

    def lower(self) -> bool:
        """Halve the scale after an overflow; False where it cannot be the reason."""
        if self.scale <= _FEWEST:
            return False
        self.scale, self._since = self.scale / 2, 0
        return True

    def succeed(self) -> None:
        """Count a step without an overflow; many of them double the scale."""
        self._since += 1
        if self._dtype is torch.float16 and self._since >= _GROW_AFTER:
            self.scale, self._since = self.scale * 2, 0

    def state(self) -> dict[str, Any]:
        """What the next step needs, under a name of its own; nothing without a scale."""
        if self._dtype is not torch.float16:
            return {}
        return {"precision": {"scale": self.scale, "since": self._since}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that has such an entry."""
        if "precision" in state:
            self.scale, self._since = float(state["precision"]["scale"]), int(state["precision"]["since"])


def repeated_on_overflow(
    step: Callable[Concatenate["Search", P], Step],
) -> Callable[Concatenate["Search", P], Step]:
    """Take a step again with a smaller loss scale where it was not finite; it has left everything as it was.

    Where no scale helps, the scale is as before: a loss that is not a number says nothing about it.
    """

    @functools.wraps(step)
    def repeated(search: "Search", /, *args: P.args, **kwargs: P.kwargs) -> Step:
        precision, random = search.parent.precision, search.policy.generator
        scale, before = precision.state(), random.get_state() if precision.scale > _FEWEST else None
        while True:
            try:
                taken = step(search, *args, **kwargs)
            except NonFiniteLoss:
                if before is None or not precision.lower():
                    precision.restore(scale)
                    raise
                random.set_state(before)
            else:
                precision.succeed()
                return taken

    return repeated


def set_precision(search: "Search", name: str) -> None:
    """Let all further steps of a search run in another precision."""
    search.parent.precision = search.weights.precision = Precision(name)

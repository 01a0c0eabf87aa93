"""Moving averages of the shared weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advnas.architecture import Draw
from advnas.search.callbacks import Callback, RunView
from advnas.search.step import Step
from advnas.stores import Resident

if TYPE_CHECKING:
    from advnas.search.search import Search


class Ema(Callback):
    """Keep an exponential moving average of the weights: e <- decay e + (1 - decay) w.

    A weight is averaged over the steps that train it: one whose candidate is not drawn does not move, and neither
    does its average. Give it to `run(..., callbacks=[ema])`; then derive under `ema.applied(search)`. Statistics of
    BatchNorm are not averaged; see `advnas.answers.reestimate_batch_norm`.

    Args:
        decay: how much of the average stays in a step; between 0 and 1.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, got {decay!r}. Write for example 0.999.")
        self._decay = decay
        self._average: dict[str, Tensor] = {}
        self._restored: Mapping[str, Tensor] = {}

    def start(self, run: RunView) -> None:
        """Begin with the weights as they are, unless an average was restored."""
        if not isinstance(run.search.weights.store, Resident):
            raise ValueError("Ema averages weights that are in memory. Write Search(..., weights='resident').")
        restored, self._restored = self._restored, {}
        self._average = {
            name: (restored[name] if restored else weight.detach()).to(weight, copy=True)
            for name, weight in _named(run.search)
        }

    def step(self, run: RunView, step: Step) -> None:
        """Average the weights that the step has trained."""
        if step.phase == "architecture" and run.search.schedule != "joint":
            return
        trained = _trained(run.search, step)
        with torch.no_grad():
            for name, weight in _named(run.search):
                if trained is None or id(weight) in trained:
                    self._average[name].lerp_(weight, 1 - self._decay)

    @contextmanager
    def applied(self, search: "Search") -> Iterator[None]:
        """While this is open, the model has the averaged weights."""
        if not self._average:
            raise ValueError("There is no average yet. Write search.run(..., callbacks=[ema]) first.")
        before = {name: weight.detach().clone() for name, weight in _named(search)}
        _put(search, self._average)
        try:
            yield
        finally:
            _put(search, before)

    def state(self) -> dict[str, Any]:
        """The averages."""
        return {"average": self._average}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on averaging."""
        self._restored = state["average"]


def _named(search: "Search") -> Iterator[tuple[str, nn.Parameter]]:
    return search.model.named_parameters()


def _trained(search: "Search", step: Step) -> set[int] | None:
    """The weights that a step has trained; None for all, as of a mixture."""
    if step.architecture is None:
        return None
    draw = Draw.bare(search.space.one_hot(step.architecture))
    return {id(weight) for weight in search.space.parameters(draw)}


def _put(search: "Search", values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, weight in _named(search):
            weight.copy_(values[name])

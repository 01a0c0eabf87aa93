"""Rivals: candidates behind a gate of 0, run inside the backward pass."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.utils._pytree import tree_flatten, tree_unflatten

from advnas.gates.buffers import copy_on_write
from advnas.gates.gate import inner_product
from advnas.gates.trees import map_tensors, tensors_in
from advnas.randomness import GeneratorStates

Lend = Callable[[int, int], AbstractContextManager[object]]
"""Keeps the weights of the candidate at (decision, candidate) at hand while a block runs."""


def at_hand(decision: int, candidate: int) -> AbstractContextManager[object]:
    """Lend what is there anyway."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Rival:
    """One candidate behind a gate of 0 in one step: its index, its gate, and how to get hold of its weights."""

    index: int
    gate: Tensor
    lent: Callable[[], AbstractContextManager[object]]


class _ZeroGates(_SingleLevelFunction):
    """O + 0 O_b + 0 O_c + ...: its backward pass runs b, c, ... and takes a dot product for each of their gates.

    Nothing of them is kept but their input, which is there anyway. tensors: the gates, then the outputs.
    """

    @staticmethod
    def forward(ctx: Any, rerun: "Rerun", rivals: Sequence[Rival], *tensors: Tensor) -> Any:
        ctx.rerun, ctx.rivals = rerun, rivals
        ctx.save_for_backward(*rerun.give_inputs())
        ctx.set_materialize_grads(False)
        outputs = tuple(map(copy_on_write, tensors[len(rivals) :]))  # not views: what comes next may work in place
        return outputs[0] if len(outputs) == 1 else outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise ctx.rerun.choice.differentiated_twice()
        try:
            inputs = ctx.saved_tensors
        except RuntimeError as error:
            raise ctx.rerun.choice.input_changed(None) from error
        slopes = (_slope(gradients, ctx.rerun(rival, inputs)).to(rival.gate) for rival in ctx.rivals)
        return None, None, *slopes, *gradients


def add_zero_gates(rerun: "Rerun", rivals: Sequence[Rival], output: Any) -> Any:
    """Give the rivals of a choice a gate of 0 each.

    Args:
        rerun: runs one of them on the input of the choice.
        rivals: what the draw puts beside the candidates that made the output.
        output: of the choice; any tree of tensors.
    """
    gates = [rival.gate for rival in rivals]
    found = _ZeroGates.apply(rerun, rivals, *gates, *tensors_in(output))  # type: ignore[attr-defined]
    if isinstance(output, Tensor):
        return found
    gated = iter(found if isinstance(found, tuple) else (found,))
    return map_tensors(lambda _: next(gated), output)


def _slope(gradients: Sequence[Tensor | None], output: Any) -> Tensor:
    """<d loss / d O, O_b>, over all tensors of an output."""
    pairs = zip(gradients, tensors_in(output), strict=True)
    products = [inner_product(gradient, leaf) for gradient, leaf in pairs if gradient is not None]
    return products[0] if len(products) == 1 else torch.stack(products).sum()


class RunsRivals(Protocol):
    """What a choice can do for its rivals."""

    def run_rival(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one candidate without a graph, and leave its buffers, such as running statistics, as they are."""

    def input_changed(self, index: int | None) -> ValueError:
        """Say that the input was changed in place: by the candidate at an index, or by somebody else."""

    def differentiated_twice(self) -> ValueError:
        """Say that the loss differentiates a backward pass in which rivals run."""


class Rerun:
    """What a choice was given in its forward pass, to run another of its candidates on it later.

    That one gets the random numbers and the precision (autocast) that the chosen candidate got; torch's generators
    are as before.

    Args:
        choice: whose candidates they are.
        args, kwargs: what the choice was called with.
    """

    def __init__(self, choice: RunsRivals, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.choice = choice
        self._tensors, self._call_with = _take_apart(args, kwargs)
        devices = {tensor.device for tensor in self._tensors}
        self._random, self._precision = GeneratorStates(devices), _Autocast(devices)

    def give_inputs(self) -> list[Tensor]:
        """Hand the tensors of the input over, to be kept by autograd instead of here."""
        given, self._tensors = self._tensors, []
        return given

    def __call__(self, rival: Rival, inputs: Sequence[Tensor]) -> Any:
        """Run a rival on the same input, without a graph."""
        args, kwargs = self._call_with(inputs)
        with rival.lent(), self._random.again(), self._precision.again():
            return self.choice.run_rival(rival.index, args, kwargs)


_Call = tuple[tuple[Any, ...], dict[str, Any]]
_PLACEHOLDER = object()  # where a tensor stood


def _take_apart(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], _Call]]:
    """The tensors of a call, and a function that makes the same call with other tensors."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # by far the most common call
        return [args[0]], lambda tensors: ((tensors[0],), {})
    leaves, form = tree_flatten((args, kwargs))
    others = [_PLACEHOLDER if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def call_with(tensors: Sequence[Tensor]) -> _Call:
        waiting = iter(tensors)
        call: _Call = tree_unflatten([next(waiting) if leaf is _PLACEHOLDER else leaf for leaf in others], form)
        return call

    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], call_with


class _Autocast:
    """In which precision candidates compute on some devices at a moment.

    Args:
        devices: those of the tensors that a choice is given; the CPU where there are none.
    """

    __slots__ = ("_devices", "_dtypes")

    def __init__(self, devices: set[torch.device]) -> None:
        self._devices = devices
        self._dtypes = self._now() if _is_on() else None

    def again(self) -> AbstractContextManager[object]:
        """Compute as at that moment while this is open, whatever is on or off now."""
        if self._dtypes is None and not _is_on():  # by far the most common case
            return nullcontext()
        stack = ExitStack()
        for kind, now in self._now().items():
            dtype = None if self._dtypes is None else self._dtypes[kind]
            if dtype != now:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        return stack

    def _now(self) -> dict[str, torch.dtype | None]:
        """The type that autocast takes, by the kind of device; None where it is off."""
        kinds = {device.type for device in self._devices} or {"cpu"}
        return {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}


_is_on: Callable[[], bool] = torch._C._is_any_autocast_enabled  # asking for every device takes ten times as long

"""Undo: put back what an optimiser has moved."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

_flatten = torch._C._nn.flatten_dense_tensors
_unflatten = torch._C._nn.unflatten_dense_tensors


@contextmanager
def undone_on_failure(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """If the block fails, give parameters, and what an optimiser keeps for them, their values from before.

    Args:
        optimizer: steps in the block.
        parameters: those that it will move.
    """
    states = [optimizer.state.get(parameter) for parameter in parameters]
    kept = [None if state is None else dict(state) for state in states]
    tensors = [value for state in states if state for value in state.values() if isinstance(value, Tensor)]
    values = _Values([*parameters, *tensors])
    options = [dict(group) for group in optimizer.param_groups]
    try:
        yield
    except BaseException:
        values.put_back()
        for parameter, state, before in zip(parameters, states, kept, strict=True):
            _put_back(optimizer, parameter, state, before)
        for group, earlier in zip(optimizer.param_groups, options, strict=True):
            group.update(earlier)
        raise


def _put_back(
    optimizer: Optimizer, parameter: nn.Parameter, state: dict[str, Any] | None, before: dict[str, Any] | None
) -> None:
    """Give an optimiser the state it had, in the same objects: stores know them."""
    if state is None or before is None:
        optimizer.state.pop(parameter, None)
    else:
        state.clear()
        state.update(before)


class _Values:
    """The numbers of some tensors at a moment, in one piece of memory per type: many small copies take long."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        with torch.no_grad():
            self._before = [(some, _flatten(some)) for some in _by_type(tensors)]

    def put_back(self) -> None:
        """Give the tensors these numbers again."""
        with torch.no_grad():
            for tensors, flat in self._before:
                for tensor, value in zip(tensors, _unflatten(flat, tensors), strict=True):
                    tensor.copy_(value)


def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether all numbers are finite. One pass over all of them, by what looks for infinite gradients otherwise."""
    with torch.no_grad():
        return not any(map(_find_infinite, _by_type(parameters)))


def _find_infinite(tensors: list[Tensor]) -> bool:
    if tensors[0].is_complex():
        tensors = [torch.view_as_real(one) for one in tensors]
    elif not tensors[0].is_floating_point():
        return False
    found, factor = (
        torch.full((1,), number, dtype=torch.float32, device=tensors[0].device) for number in (0.0, 1.0)
    )
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)  # times 1 changes nothing
    return bool(found.item())


def _by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Sort tensors by device and dtype; as torch's optimisers do it, in one call."""
    if not tensors:
        return []
    groups = _group_tensors_by_device_and_dtype([[*tensors]])
    return [[one for one in some if one is not None] for (some,), _ in groups.values()]

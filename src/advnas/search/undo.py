"""Undo: put back what an optimiser has moved."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@contextmanager
def undone_on_failure(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """If the block fails, give parameters, and what an optimiser keeps for them, their values from before.

    Args:
        optimizer: steps in the block.
        parameters: those that it will move.
    """
    values = [parameter.detach().clone() for parameter in parameters]
    states = [_Kept(optimizer.state[one]) if one in optimizer.state else None for one in parameters]
    options = [dict(group) for group in optimizer.param_groups]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, value, state in zip(parameters, values, states, strict=True):
                parameter.copy_(value)
                if state is None:
                    optimizer.state.pop(parameter, None)
                else:
                    state.put_back()
        for group, before in zip(optimizer.param_groups, options, strict=True):
            group.update(before)
        raise


class _Kept:
    """What an optimiser keeps for one parameter, at a moment."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._before = {
            name: (kept, kept.clone()) if isinstance(kept, Tensor) else (kept, None) for name, kept in state.items()
        }

    def put_back(self) -> None:
        """In the same tensors: stores know them."""
        for name in self._state.keys() - self._before.keys():
            del self._state[name]
        for name, (kept, value) in self._before.items():
            self._state[name] = kept if value is None else kept.copy_(value)

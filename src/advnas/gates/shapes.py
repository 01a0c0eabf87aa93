"""Shapes: what can be said of inputs and outputs of candidates without their numbers."""

import copy
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from advnas.gates.trees import map_tensors, parts_of

Call = tuple[Any, Any]
"""What a module was called with, without the numbers: shape and type of its one tensor, or all its arguments."""


def note_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Note a call; read it with `read_call`."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # by far the most common call
        return args[0].shape, args[0].dtype
    return map_tensors(_without_numbers, args), map_tensors(_without_numbers, kwargs)


def read_call(noted: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by place and by name, with tensors on torch's "meta" device."""
    first, second = noted
    if isinstance(second, torch.dtype):
        return (torch.empty(first, dtype=second, device="meta"),), {}
    return first, second


def _without_numbers(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def shape_returned(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """What a module would return for a call, found on a copy without numbers; None where that cannot be told."""
    try:
        with torch.no_grad():
            return describe(_copy_without_numbers(module)(*args, **kwargs))
    except NotImplementedError:
        return None
    except (RuntimeError, ValueError, TypeError) as error:
        return None if "meta" in str(error).lower() else f"an error ({error})"
    except Exception:  # whatever somebody's own module does not know about such tensors
        return None


def _copy_without_numbers(module: nn.Module) -> nn.Module:
    """A deep copy that takes no memory; choices inside follow the same routes."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        memo[id(tensor)] = nn.Parameter(_without_numbers(tensor), requires_grad=False)
        if not isinstance(tensor, nn.Parameter):
            memo[id(tensor)] = _without_numbers(tensor)
    for part in module.modules():
        if hasattr(part, "slot"):
            memo[id(part.slot)] = part.slot
    return copy.deepcopy(module, memo)


def describe(tree: Any, *, values: bool = False) -> Hashable:
    """Shapes of tensors, names of other types, in the order of the tree.

    Args:
        tree: inputs or outputs.
        values: numbers and texts as they are, since an output's shape may depend on them.
    """
    if isinstance(tree, Tensor):
        return tuple(tree.shape)
    if isinstance(tree, dict):
        return tuple((key, describe(value, values=values)) for key, value in tree.items())
    parts = parts_of(tree)
    if parts or isinstance(tree, tuple | list):
        return tuple(describe(part, values=values) for part in parts)
    return tree if values and isinstance(tree, int | float | str) else type(tree).__name__


def plain_shape(shape: Hashable) -> Hashable:
    """A shape as people write it."""
    return tuple(shape) if isinstance(shape, torch.Size) else shape

"""Trees: what candidates take and return, tensors in containers."""

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

Rebuild = Callable[[list[Any]], Any]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, range, slice, torch.dtype, torch.device)


def map_tensors(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every tensor of equal trees; other leaves stay as they are.

    A tree is built of tuples, lists, dicts, dataclasses and whatever else is known to torch.utils._pytree.
    """
    if isinstance(tree, Tensor):
        return function(tree, *others)
    found = _take_apart(tree)
    if found is None:
        return tree
    parts, rebuild = found
    rows = zip(parts, *(parts_of(other) for other in others), strict=True)
    return rebuild([map_tensors(function, *row) for row in rows])


def map_parts(known: Callable[[Any], bool], function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the parts of a tree that are known, the largest first; other leaves stay as they are.

    Args:
        known: whether a part is one of them; nothing is then looked for inside.
        function: makes what stands in its place.
        tree: as for `map_tensors`.
    """
    if known(tree):
        return function(tree)
    found = _take_apart(tree)
    if found is None:
        return tree
    parts, rebuild = found
    return rebuild([map_parts(known, function, part) for part in parts])


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in the order in which `map_tensors` comes to them."""
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


def strange_leaf(tree: Any) -> Any:
    """What of a tree is neither a tensor nor a plain value, and may hide tensors; None if there is nothing."""
    return next((leaf for leaf in _leaves(tree) if not isinstance(leaf, (Tensor, *_PLAIN))), None)


def is_weighable(tensor: Tensor) -> bool:
    """Whether a weight makes sense of a tensor: not of indices, lengths and masks."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def parts_of(tree: Any) -> list[Any]:
    """What a container holds; nothing for a leaf."""
    found = _take_apart(tree)
    return [] if found is None else found[0]


def _leaves(tree: Any) -> Iterator[Any]:
    found = None if isinstance(tree, Tensor) else _take_apart(tree)
    if found is None:
        yield tree
    else:
        for part in found[0]:
            yield from _leaves(part)


def _take_apart(tree: Any) -> tuple[list[Any], Rebuild] | None:
    """What a container holds, and how to make another like it; None for a leaf."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return list(tree), kind
    if kind is dict:
        return list(tree.values()), lambda parts: dict(zip(tree, parts, strict=True))
    if isinstance(tree, _PLAIN):
        return None
    parts, form = tree_flatten(tree, is_leaf=lambda node: node is not tree)
    if not form.is_leaf():
        return parts, lambda others: tree_unflatten(others, form)
    if dataclasses.is_dataclass(tree) or isinstance(tree, dict):
        return _take_apart_named(tree)
    if isinstance(tree, tuple | list):
        return list(tree), lambda others: kind(*others) if hasattr(tree, "_fields") else kind(others)
    return None


def _take_apart_named(tree: Any) -> tuple[list[Any], Rebuild]:
    """A dataclass, a dict of a class of its own, or both in one, as the outputs of transformers are.

    The other one is a copy with the parts replaced, as a class may be made in ways of its own.
    """
    fields = [field.name for field in dataclasses.fields(tree)] if dataclasses.is_dataclass(tree) else []
    attributes = [name for name in fields if hasattr(tree, name)]
    keys = [key for key in tree if key not in attributes] if isinstance(tree, dict) else []

    def rebuild(parts: list[Any]) -> Any:
        other = copy.copy(tree)
        for name, part in zip(attributes, parts, strict=False):
            object.__setattr__(other, name, part)
            if isinstance(other, dict) and name in other:
                dict.__setitem__(other, name, part)
        for key, part in zip(keys, parts[len(attributes) :], strict=True):
            dict.__setitem__(other, key, part)
        return other

    return [*(getattr(tree, name) for name in attributes), *(tree[key] for key in keys)], rebuild

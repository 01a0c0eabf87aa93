"""Trees: what candidates take and return, tensors in tuples, lists and dicts."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def map_tensors(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every tensor of equal trees of tuples, lists and dicts; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return type(tree)(
            {key: map_tensors(function, tree[key], *(other[key] for other in others)) for key in tree}
        )
    if isinstance(tree, tuple | list):
        leaves = [map_tensors(function, *parts) for parts in zip(tree, *others, strict=True)]
        return type(tree)(*leaves) if hasattr(tree, "_fields") else type(tree)(leaves)
    return tree


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in the order in which `map_tensors` comes to them."""
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found

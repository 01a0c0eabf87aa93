"""Values that a checkpoint can hold: tensors, numbers, texts and containers of them."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ALREADY_PLAIN = (type(None), bool, torch.dtype, torch.device)

# A base class and how to make exactly that of a subclass, whose own methods may say something else: str() of an
# enumeration gives its name. numpy's float64, str_ and bytes_ are such subclasses.
_EXACT: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    (str, str.__str__),
    (bytes, bytes),
    (bytearray, bytes),
    (np.bool_, bool),
    (np.integer, int),
    (np.floating, float),
    (PurePath, str),
)


def plain(value: Any, name: str) -> Any:
    """Convert a value to what can be read again without running code.

    Args:
        value: Tensors, numbers, texts, None, paths, numpy scalars and arrays, and mappings, lists, tuples and sets
            of them. Parameters become tensors and numpy arrays become tensors; tensors share memory with `value`.
        name: The path of keys that leads to the value, for the error.

    Returns:
        The same in plain Python values and tensors.

    Raises:
        ValueError: Some part can be none of these. The message gives its path of keys.
    """
    try:
        return _plain(value, name)
    except RecursionError:
        raise ValueError(f"{name or 'the state'} is nested too deeply, or contains itself.") from None


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, _ALREADY_PLAIN):
        return value
    if type(value) in (Tensor, nn.Parameter):
        return value.detach()
    for base, convert in _EXACT:
        if isinstance(value, base):
            return convert(value)
    if isinstance(value, Mapping):
        return _plain_mapping(value, name)
    if isinstance(value, list | tuple | set):
        return _plain_sequence(value, name)
    if isinstance(value, np.ndarray):
        return _tensor(value, name)
    raise _refusal(value, name)


def _plain_mapping(mapping: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    items = [(_plain(key, _join(name, key)), _plain(value, _join(name, key))) for key, value in mapping.items()]
    if not hasattr(mapping, "_metadata"):
        return dict(items)
    state_dict = OrderedDict(items)  # a module's: load_state_dict reads the versions of the modules from it
    state_dict._metadata = _plain(mapping._metadata, _join(name, "_metadata"))  # type: ignore[attr-defined]
    return state_dict


def _plain_sequence(sequence: Any, name: str) -> Any:
    kind = next(kind for kind in (list, tuple, set) if isinstance(sequence, kind))
    return kind(_plain(value, _join(name, number)) for number, value in enumerate(sequence))


def _tensor(array: np.ndarray, name: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError:
        raise _refusal(array, name, f"numpy array of {array.dtype}") from None


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _refusal(value: object, name: str, kind: str = "") -> ValueError:
    kind = kind or f"{type(value).__module__}.{type(value).__qualname__}"
    return ValueError(
        f"{name or 'the state'} is a {kind}, which a checkpoint cannot hold: it could not be read again without "
        "running code. Write a tensor, a number, a text, None, or a list, tuple or dict of them instead, for "
        "example with float(...), str(...), list(...) or torch.tensor(...)."
    )

"""Buffers: what a forward pass may move besides weights, such as running statistics, kept as it was."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from advnas.gates.trust import is_batch_norm, is_unhooked

_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


def copy_on_write(tensor: Tensor) -> Tensor:
    """A copy that costs nothing until someone writes into it or its original."""
    if not tensor.is_cpu:
        return tensor.clone()
    try:
        return tensor._lazy_clone()
    except RuntimeError:  # memory that torch does not own alone, such as numpy's or another process's
        return tensor.clone()


class BufferSnapshot:
    """The buffers of some modules at a moment: a user's own moving averages and counters as well.

    Nothing is copied before somebody writes. A buffer that gets another shape is a cache that has grown, and stays.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._before = [
            (module._buffers, name, buffer, None if buffer is None else copy_on_write(buffer.detach()))
            for module in modules
            for name, buffer in module._buffers.items()
        ]

    def put_back(self) -> None:
        """Give all buffers the numbers of that moment; also those that were replaced by other tensors."""
        with torch.no_grad():
            for holder, name, buffer, value in self._before:
                if buffer is None or value is None:
                    holder[name] = None
                elif (now := holder.get(name)) is None or now.shape == buffer.shape:
                    holder[name] = buffer
                    if _was_written(buffer, value):
                        buffer.copy_(value)


def _was_written(buffer: Tensor, value: Tensor) -> bool:
    """Whether a tensor and its copy on write are apart; elsewhere than on the CPU the copy was made at once."""
    address = torch._C._data_address  # type: ignore[attr-defined]
    return not buffer.is_cpu or address(buffer) != address(value)


@contextmanager
def still(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let no buffer of some modules change for longer than this is open.

    torch's BatchNorms are told to keep no statistics, which costs nothing and changes nothing that they compute.
    That means something else to every other norm: their buffers, like all others, are put back.
    """
    norms: list[nn.Module] = []
    others: list[nn.Module] = []
    for module in modules:
        (norms if _can_stop_tracking(module) else others).append(module)
    snapshot = BufferSnapshot(others)
    try:
        for norm in norms:
            norm.track_running_stats = False  # type: ignore[assignment]
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True  # type: ignore[assignment]
        snapshot.put_back()


def _can_stop_tracking(module: nn.Module) -> bool:
    return (
        is_batch_norm(module)
        and bool(module.track_running_stats)
        and module._buffers.keys() == _STATISTICS
        and is_unhooked(module)
    )

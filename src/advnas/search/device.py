"""Where and in which precision a model computes."""

import copy
import functools
import os
from collections import UserDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from advnas.gates import map_parts
from advnas.task import Task

_KERNELS = 16_384
_T = TypeVar("_T")

PRECISIONS = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class Device:
    """name: as torch knows it: cpu, cuda, cuda:1, mps. precision: of the operations that can do with less.

    Weights, theta and reductions stay in float32 whatever the precision.
    """

    name: str = "cpu"
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}.")
        try:
            torch.empty(0, device=self.name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(f"The device {self.name!r} cannot be used here: {reason}. Write cpu.") from error

    def place(self, batch: Any) -> Any:
        """The same batch with all its tensors on the device, in containers and in objects that have a `to`."""
        return map_parts(_can_move, self._moved, batch)

    def _moved(self, part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(self.name, non_blocking=True)
        other = copy.copy(part)  # many a `to` changes its object, and the data are the user's
        if not _has_to(part):
            other.data = self.place(part.data)
            return other
        moved = other.to(self.name)
        return other if moved is None else moved

    def computing(self) -> AbstractContextManager[object]:
        """While this is open, operations run in the precision; with float32, an autocast around it stays."""
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is None else torch.autocast(torch.device(self.name).type, dtype=dtype)


def _can_move(part: Any) -> bool:
    """Whether a part of a batch is moved as it is: before it is taken apart, as a PackedSequence is a tuple too."""
    return _has_to(part) or isinstance(part, UserDict)


def _has_to(part: Any) -> bool:
    return callable(getattr(type(part), "to", None))


def on_device(task: Task, device: str) -> Task:
    """The same task with all tensors of a minibatch taken to a device before the loss or the metric is computed.

    Tensors are found in tuples, lists, dicts, dataclasses and what else torch.utils._pytree knows. An object with a
    method `to`, such as a PackedSequence, a BatchEncoding or a graph, moves itself.

    `Search.run(device=...)` does this for its own call. What judges or trains the answer afterwards is given the
    task as this function returns it.
    """
    place, metric = Device(device).place, task.metric
    return replace(
        task,
        loss=_after(place, task.loss),
        metric=None if metric is None else _after(place, metric),
    )


def _after(place: Callable[[Any], Any], function: Callable[[nn.Module, Any], _T]) -> Callable[[nn.Module, Any], _T]:
    """The same function of a batch that is placed first."""

    @functools.wraps(function)
    def placed(model: nn.Module, batch: Any) -> _T:
        return function(model, place(batch))

    return placed


def keep_kernels() -> None:
    """Let a CPU keep the kernels of many candidates, unless the environment says how many.

    oneDNN, which computes torch's convolutions on CPUs, makes a kernel for every shape it meets and keeps 1,024 of
    them. A space with more makes most of them anew in every step, which can double its time. The number is read
    once, at the first convolution of the process. Kernels reserve address space, of which they use little: where
    it is rationed (`ulimit -v`, `ulimit -d`), oneDNN is left as it is.
    """
    told = any(f"{library}_PRIMITIVE_CACHE_CAPACITY" in os.environ for library in ("ONEDNN", "DNNL"))
    if not told and not _address_space_is_rationed():
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = str(_KERNELS)


def _address_space_is_rationed() -> bool:
    try:
        import resource  # not on Windows
    except ImportError:
        return False
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    return any(limit != resource.RLIM_INFINITY for limit in limits)

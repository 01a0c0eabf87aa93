"""Where and in which precision a model computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
            reason = str(error).partition("\n")[0]
            raise ValueError(f"The device {self.name!r} cannot be used here: {reason} Write cpu.") from error

    def place(self, batch: Any) -> Any:
        """The same batch with all its tensors on the device."""
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.name, non_blocking=True), batch)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """While this is open, operations run in the precision."""
        dtype = PRECISIONS[self.precision]
        with torch.autocast(torch.device(self.name).type, dtype=dtype, enabled=dtype is not None):
            yield

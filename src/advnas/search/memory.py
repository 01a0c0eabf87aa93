"""What a step keeps in memory for its backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor


def saved_bytes(step: Callable[[], object]) -> int:
    """Bytes of distinct memory that a step's forward pass keeps for its backward pass, parameters aside."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:
            # Tensor.data_ptr would turn copies that only happen on a write into real ones.
            address: int = torch._C._data_address(tensor)  # type: ignore[attr-defined]
            start = address - int(tensor.storage_offset()) * tensor.itemsize
            kept[start] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(kept.values())

"""Buffers that no checkpoint has."""

import warnings

from torch import Tensor, nn


class UnsavedBuffers:
    """The buffers of a module that are not in its `state_dict`, as they are when a run begins.

    Args:
        model: of the run, on its device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = _unsaved(model)

    def tell(self) -> None:
        """Warn, once, if some have changed since: after a resume they begin anew. Constants need no word."""
        changed = [name for name, now in _unsaved(self._model).items() if now != self._before.get(name, now)]
        if not changed:
            return
        self._before = {}
        warnings.warn(
            f"The buffers {', '.join(changed)} change while the model runs, and are not saved in checkpoints: a "
            "resumed run begins with those of a new model. Register them with persistent=True if they matter.",
            stacklevel=2,
        )


def _unsaved(model: nn.Module) -> dict[str, tuple[int, int]]:
    """By name what tells one content from another: which tensor it is, and how often it was written."""
    return {
        f"{path}.{name}" if path else name: _identity(buffer)
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
        if (buffer := module._buffers.get(name)) is not None
    }


def _identity(buffer: Tensor) -> tuple[int, int]:
    return buffer.data_ptr(), 0 if buffer.is_inference() else buffer._version

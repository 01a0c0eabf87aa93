"""Training and evaluation mode, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from advnas.gates.buffers import still


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """For a while, everything is in evaluation mode; every part gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """For a while, evaluation mode, except that norms use the statistics of the batch and leave their own alone."""
    with evaluating(module), still(module.modules()):
        for part in module.modules():
            part.training = isinstance(part, _NormBase)
        yield

"""Statistics of BatchNorm for one path of a searched network."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from advnas.modes import batch_statistics


def reestimate_batch_norm(
    module: nn.Module, batches: Iterable[Any], run: Callable[[nn.Module, Any], object]
) -> None:
    """Give every BatchNorm of a derived module the statistics of its own path, for use in evaluation mode.

    run: passes a minibatch through the module, such as `lambda module, batch: module(batch[0])`, or a loss.

    Mean and variance are those of all values that reached a layer in one pass over the batches, while the layers
    before it normalised with the statistics of the batch. The variance is the one that training mode divides by, so
    that with all the data in one batch both modes give the same output. Dropout is off, as it will be in use.
    Layers built without running statistics, as those of a search network, get some; a layer without an affine part
    stays so. Modes are left as they were, and a pass that fails changes nothing.
    """
    seen = {norm: _Moments() for norm in module.modules() if isinstance(norm, _BatchNorm)}
    hooks = [norm.register_forward_hook(moments.add) for norm, moments in seen.items()]
    empty = True
    try:
        with torch.no_grad(), batch_statistics(module):
            for batch in batches:
                run(module, batch)
                empty = False
    finally:
        for hook in hooks:
            hook.remove()
    if empty:
        raise ValueError("There are no batches to take statistics from. Pass some of the training data.")
    track_norms(module)
    for norm, moments in seen.items():
        moments.write_into(norm)


class _Moments:
    """Sums over everything that reached one layer, in double precision."""

    def __init__(self) -> None:
        self._calls = self._values = 0
        self._sum: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def add(self, norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take in x [batch, channels, ...], which the layer has accepted."""
        x = inputs[0].to(torch.promote_types(inputs[0].dtype, torch.float32))
        others = [dimension for dimension in range(x.dim()) if dimension != 1]
        variance, mean = (moment.double() for moment in torch.var_mean(x, others, correction=0))
        values = x.numel() // x.shape[1]
        self._sum = self._sum + values * mean
        self._squares = self._squares + values * (variance + mean**2)
        self._values += values
        self._calls += 1

    def write_into(self, norm: _BatchNorm) -> None:
        """Write mean and variance into the layer; one that nothing reached keeps what it has."""
        if self._calls and norm.running_mean is not None and norm.running_var is not None:
            mean, square = torch.as_tensor(self._sum) / self._values, torch.as_tensor(self._squares) / self._values
            norm.running_mean.copy_(mean)
            norm.running_var.copy_((square - mean**2).clamp_min(0))
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.fill_(self._calls)


def track_norms(module: nn.Module) -> None:
    """Give running statistics, of mean 0 and variance 1, to every BatchNorm that was built without.

    After this, weights that were exported from a module with re-estimated norms fit into a freshly derived one.
    """
    like = next((weight for weight in module.parameters() if weight.is_floating_point()), torch.zeros(()))
    for norm in module.modules():
        if isinstance(norm, _BatchNorm) and norm.running_mean is None:
            norm.track_running_stats = True
            norm.running_mean = like.new_zeros(norm.num_features)
            norm.running_var = like.new_ones(norm.num_features)
            norm.num_batches_tracked = like.new_zeros((), dtype=torch.long)

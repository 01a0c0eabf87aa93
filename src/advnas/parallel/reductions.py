"""What the processes of one search tell each other in a step, so that all of them take the same one."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from advnas.architecture import Draw
from advnas.parallel.group import Group

# The purposes that a group counts bytes by; each is one reduction a step.
PRESENCE = "weight step: the loss, and which gradients there are"
WEIGHTS = "weight step: gradients and running statistics"
THETA = "architecture step"

State = dict[str, Tensor]


def average_weights(
    group: Group, loss: Tensor, parameters: Sequence[nn.Parameter], norms: Sequence[_NormBase]
) -> Tensor:
    """The mean loss; the gradients of the parameters and the norms' running statistics become means in place.

    Only gradients that exist in some process travel: the drawn path's. Where the loss is not finite anywhere,
    nothing more is sent, as nobody will take the step. Running variances are means of the processes' own, so
    they leave out how far the means of their minibatches are apart.
    """
    if group.size == 1:
        return loss
    exists = [float(parameter.grad is not None) for parameter in parameters]
    told = torch.tensor([loss.item(), *exists], dtype=torch.float64)
    group.average_([told], PRESENCE)
    mean = told[0].to(loss.dtype)
    if not mean.isfinite():
        return mean
    gradients = [_gradient(parameter) for parameter, share in zip(parameters, told[1:], strict=True) if share > 0]
    group.average_([*gradients, *_statistics(norms)], WEIGHTS)
    return mean


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zeros where only other processes have one: their minibatches may have taken another way."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _statistics(norms: Sequence[_NormBase]) -> list[Tensor]:
    return [
        buffer for norm in norms for buffer in norm.buffers(recurse=False) if buffer.dtype.is_floating_point
    ]  # not the count of minibatches, which is the same everywhere


def average_feedback(
    group: Group, loss: Tensor, slope: Tensor | None, reached: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Means of the loss and of the slope [decisions, candidates]; reached: by any process's forward pass."""
    if group.size == 1:
        return loss, slope, reached
    seen = reached.to(loss.dtype)
    tensors = [loss.clone(), seen] if slope is None else [loss.clone(), seen, slope.clone()]
    group.average_(tensors, THETA)
    return tensors[0], None if slope is None else tensors[2], seen > 0


class Estimates(NamedTuple):
    """What the processes found out together, each with a draw of its own.

    gradient: the mean [decisions, candidates], or None where the strategy gives none. reached: by any draw.
    losses: [processes]. chosen: one-hot [processes, decisions, candidates]; single: bool [processes], whether a
    process ran exactly that architecture and not a mixture.
    """

    gradient: Tensor | None
    reached: Tensor
    state: State
    losses: Tensor
    chosen: Tensor
    single: Tensor


def average_estimates(
    group: Group,
    gradient: Tensor | None,
    reached: Tensor,
    before: Mapping[str, Tensor],
    after: State,
    loss: Tensor,
    draw: Draw,
) -> Estimates:
    """Means of the gradient and of what changed in the strategy's state, and who drew what with which loss.

    gradient: rows that this process did not reach count as 0.
    """
    seen, weights = reached.to(loss.dtype), draw.weights.detach()
    drawn = _row(group, torch.cat([loss.reshape(1), loss.new_tensor([draw.one_hot]), weights.argmax(-1).to(loss)]))
    summed = [] if gradient is None else [gradient * reached.unsqueeze(-1)]
    changed = {key: value.clone() for key, value in after.items() if value is not before.get(key)}
    group.sum_([seen, drawn, *summed, *changed.values()], THETA)
    return Estimates(
        gradient=summed[0] / group.size if summed else None,
        reached=seen > 0,
        state=after | {key: value / group.size for key, value in changed.items()},
        losses=drawn[:, 0],
        chosen=torch.nn.functional.one_hot(drawn[:, 2:].long(), weights.shape[-1]).to(weights.dtype),
        single=drawn[:, 1] > 0,
    )


def _row(group: Group, value: Tensor) -> Tensor:
    """[processes, n]: the value in this process's own row, so that a sum gathers all of them."""
    rows = value.new_zeros(group.size, len(value))
    rows[group.rank] = value
    return rows

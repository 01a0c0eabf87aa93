"""Averages over the processes of one search, so that all of them take the same step."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from advnas.architecture import Draw
from advnas.parallel.group import Group

# The purposes that a group counts bytes by; each is one reduction per step.
PRESENCE = "weight step: the loss, and which gradients there are"
WEIGHTS = "weight step: gradients and running statistics"
THETA = "architecture step"

State = dict[str, Tensor]


def average_weights(
    group: Group, loss: Tensor, parameters: Sequence[nn.Parameter], norms: Sequence[_NormBase]
) -> Tensor:
    """Average the loss, and in place the gradients of the parameters and the running statistics of the norms.

    Only gradients that exist in some process are sent: those of the drawn path. If the loss is not finite in any
    process, nothing more is sent, as no process will take the step. Running variances are means of the processes'
    own, so they do not include the variance between the processes' minibatches.

    Args:
        group: The processes.
        loss: Of this process's minibatch.
        parameters: The same in every process.
        norms: The same in every process.

    Returns:
        The mean loss.
    """
    if group.size == 1:
        return loss
    exists = [float(parameter.grad is not None) for parameter in parameters]
    means = torch.tensor([loss.item(), *exists], dtype=torch.float64)
    group.average_([means], PRESENCE)
    mean = means[0].to(loss.dtype)
    if not mean.isfinite():
        return mean
    gradients = [_gradient(parameter) for parameter, share in zip(parameters, means[1:], strict=True) if share > 0]
    group.average_([*gradients, *_statistics(norms)], WEIGHTS)
    return mean


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient, or zeros if only other processes have one: their minibatches may have used other branches."""
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
    """Average what an architecture step learned.

    Args:
        group: The processes.
        loss: Of this process's minibatch.
        slope: [decisions, candidates], or None in every process.
        reached: bool [decisions], by this process's forward pass.

    Returns:
        Mean loss, mean slope, and the decisions that any process reached.
    """
    if group.size == 1:
        return loss, slope, reached
    seen = reached.to(loss.dtype)
    tensors = [loss.clone(), seen] if slope is None else [loss.clone(), seen, slope.clone()]
    group.average_(tensors, THETA)
    return tensors[0], None if slope is None else tensors[2], seen > 0


class Estimates(NamedTuple):
    """Averages over processes that each had their own draw.

    Attributes:
        gradient: The mean [decisions, candidates], or None if the strategy gives none.
        reached: bool [decisions], by any draw.
        state: The strategy's state.
        losses: [processes].
        chosen: One-hot [processes, decisions, candidates].
        single: bool [processes], whether a process ran exactly that architecture and not a mixture.
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
    """Average the gradient and what changed in the strategy's state; gather draws and losses.

    Args:
        group: The processes.
        gradient: [decisions, candidates]; rows that this process did not reach count as 0.
        reached: bool [decisions], by this process's draw.
        before: The strategy's state before the step.
        after: And after it.
        loss: Of this process's draw.
        draw: What this process drew.

    Returns:
        The averages, the same in every process.
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

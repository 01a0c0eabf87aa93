"""The loss of architectures with the weights that they share."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from advnas.architecture import Architecture, Draw
from advnas.modes import batch_statistics
from advnas.randomness import seeded
from advnas.search import Search
from advnas.task import refuse_read_once

LossOnBatch = Callable[[nn.Module, Any], Tensor]


class Judgement(NamedTuple):
    """One architecture. losses: of every minibatch, infinite where one is not a number. reached: its decisions that
    the forward pass came to; a nested one may lie off the path.
    """

    losses: tuple[float, ...]
    reached: frozenset[str]

    @property
    def mean(self) -> float:
        """Over the minibatches."""
        return math.fsum(self.losses) / len(self.losses)


class SharedLoss:
    """What the weights of a search say about architectures: their losses on the same minibatches.

    The model is in evaluation mode, but normalises with the statistics of the batch: running statistics, where the
    search kept any, are those of all paths together, and this is how theta was trained. Every architecture meets
    the same randomness. Each architecture is run once and remembered. The search is left exactly as it was.

    Args:
        search: whose weights are used.
        batches: validation minibatches, read once for every architecture.
        loss: the scalar loss of a module on a minibatch, such as `task.loss`.
        seed: of what is random in the data or the loss.
    """

    def __init__(self, search: Search, batches: Iterable[Any], loss: LossOnBatch, *, seed: int = 0) -> None:
        refuse_read_once(batches, "every architecture is run on all the batches")
        self.passes = 0
        self._search, self._batches, self._loss, self._seed = search, batches, loss, seed
        self._known: dict[Architecture, Judgement] = {}

    def judge(self, architecture: Mapping[str, str]) -> Judgement:
        """Run an architecture on all minibatches, unless that was done before.

        Raises:
            ValueError: there are no minibatches, or the loss is not one number.
        """
        key = Architecture(architecture)
        if key not in self._known:
            self._known[key] = self._run(key)
            self.passes += len(self._known[key].losses)
        return self._known[key]

    def mean(self, architecture: Mapping[str, str]) -> float:
        """The mean loss of an architecture over all minibatches."""
        return self.judge(architecture).mean

    def _run(self, architecture: Architecture) -> Judgement:
        search, draw = self._search, Draw.bare(self._search.space.one_hot(architecture))
        with (
            search.parent.located("ranking", draw),
            search.weights.loaded(draw),
            search.space.running(draw) as trace,
            batch_statistics(search.model),
            seeded(self._seed, search.space.device),
            torch.no_grad(),
        ):
            losses = tuple(self._loss_on(batch) for batch in self._batches)
        if not losses:
            raise ValueError(
                "There are no minibatches to judge an architecture by: the data are empty, or an iterator that was "
                "read before."
            )
        names = (decision.name for decision in search.space.decisions)
        reached = frozenset(name for name, hit in zip(names, trace.reached.tolist(), strict=True) if hit)
        return Judgement(losses, reached)

    def _loss_on(self, batch: Any) -> float:
        loss = self._search.parent.loss(partial(_swapped, self._loss, batch)).item()
        return math.inf if math.isnan(loss) else loss


def _swapped(loss: LossOnBatch, batch: Any, model: nn.Module) -> Tensor:
    return loss(model, batch)

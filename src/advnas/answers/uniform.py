"""The best of many uniform architectures by the shared weights, within a number of forward passes."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch

from advnas.answers.ranking import draw_within
from advnas.architecture import Architecture, Draw
from advnas.arguments import check_count
from advnas.modes import batch_statistics
from advnas.randomness import generator
from advnas.search import LossOf, Search

_DRAWS = 5  # sets these draws apart from the other randomness of a seed


@dataclass(frozen=True)
class Halving:
    """Rounds, each of which keeps the better half of the architectures and doubles the minibatches they have seen.

    All architectures of a round run on the same minibatches, and keep their losses of the rounds before. It ends
    when one architecture is left or one pass over the data is complete. Every further round costs about half of the
    first one, so that most passes go to architectures that may still be the best (sequential halving, Karnin,
    Koren, Somekh, ICML 2013), and nothing has to be chosen but the number of passes.

    architectures: how many begin. first: minibatches of the first round. available: minibatches of one pass.
    """

    architectures: int
    first: int
    available: int

    @classmethod
    def costing(cls, passes: float, different: int, available: int) -> Self:
        """Plan the smallest one that takes at least so many forward passes, or the largest there is.

        Args:
            passes: forward passes of one architecture over one minibatch.
            different: how many different networks there are. Where all of them can begin, the first round gets
                more minibatches.
            available: minibatches of one pass over the validation data.
        """
        check_count("available", available)
        counts = range(1, min(check_count("different", different), max(1, math.ceil(passes))) + 1)
        enough = bisect_left(counts, passes, key=lambda count: cls(count, 1, available).passes)
        if enough < len(counts):
            return cls(counts[enough], 1, available)
        firsts = range(1, available + 1)
        enough = bisect_left(firsts, passes, key=lambda first: cls(counts[-1], first, available).passes)
        return cls(counts[-1], firsts[min(enough, available - 1)], available)

    def rounds(self) -> Iterator[tuple[int, int]]:
        """How many architectures run on how many further minibatches, round by round."""
        left, seen = self.architectures, 0
        while seen == 0 or (left > 1 and seen < self.available):
            further = min(seen or self.first, self.available - seen)
            yield left, further
            left, seen = math.ceil(left / 2), seen + further

    @property
    def passes(self) -> int:
        """Forward passes of one architecture over one minibatch that all rounds take together."""
        return sum(left * further for left, further in self.rounds())


@dataclass(frozen=True)
class Ranked:
    """An architecture and its mean loss over the minibatches it was run on, with the shared weights."""

    architecture: Architecture
    loss: float
    minibatches: int


def rank_uniform(
    search: Search,
    losses: Iterator[LossOf],
    plan: Halving,
    *,
    on_minibatch: Callable[[], object] | None = None,
) -> list[Ranked]:
    """Draw different networks from theta, which is uniform where nothing moved it, and rank them.

    The model is in evaluation mode, but normalises with the statistics of the batch, as in `rank_architectures`.
    The search is left exactly as it was, and its seed and weights decide the result.

    Args:
        search: its weights are trained.
        losses: on one validation minibatch after the other; each is read once.
        plan: how many architectures, and on how many minibatches.
        on_minibatch: called when all architectures have run on a minibatch; it may raise to stop.

    Returns:
        All of them. Those that lasted longer come first, and among these the ones with the lower mean loss.
    """
    random = generator(search.seed, _DRAWS)
    drawn = draw_within(search, plan.architectures, random)
    draws = [Draw.bare(search.space.one_hot(one)) for one in drawn]
    totals, seen = [0.0] * len(draws), [0] * len(draws)
    order = list(range(len(draws)))
    with batch_statistics(search.model), torch.no_grad():
        for left, further in plan.rounds():
            kept = order[:left]
            for loss_of in islice(losses, further):
                for number in kept:
                    totals[number] += _loss(search, draws[number], loss_of)
                    seen[number] += 1
                if on_minibatch is not None:
                    on_minibatch()
            order[:left] = sorted(kept, key=lambda number: totals[number])
    return [
        Ranked(search.space.architecture(draws[number].weights), totals[number] / seen[number], seen[number])
        for number in order
    ]


def _loss(search: Search, draw: Draw, loss_of: LossOf) -> float:
    """The loss of one architecture on one minibatch; infinite where it is not a number."""
    with search.parent.located("ranking", draw), search.weights.loaded(draw), search.parent.running(draw):
        loss = search.parent.loss(loss_of).item()
    return math.inf if math.isnan(loss) else loss

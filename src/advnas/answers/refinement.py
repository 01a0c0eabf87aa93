"""Refine an answer: change one decision at a time as long as the shared weights see a gain."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from advnas.answers.shared_loss import LossOnBatch, SharedLoss
from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.search import Search
from advnas.space import Decision


@dataclass(frozen=True)
class Move:
    """One change on the way. loss: after it."""

    decision: str
    before: str
    after: str
    loss: float


@dataclass(frozen=True)
class Refined:
    """Where the refinement ended.

    start_loss, loss: mean validation losses with the shared weights, at the start and at the end. passes: forward
    passes of one architecture over one minibatch that it took. complete: whether no single change would gain
    anything; otherwise the passes ran out.
    """

    architecture: Architecture
    start_loss: float
    loss: float
    moves: tuple[Move, ...]
    passes: int
    complete: bool


def refine(
    search: Search,
    batches: Iterable[Any],
    loss: LossOnBatch,
    *,
    start: Mapping[str, str] | None = None,
    passes: int | None = None,
    seed: int = 0,
) -> Refined:
    """Improve the argmax by coordinates: take the operation with the least loss at one decision after the other.

    The most undecided decisions come first. It ends when a whole round changes nothing: no neighbour, that is no
    architecture with one other operation, has a lower loss on these minibatches. A round over n decisions of K
    operations takes n (K - 1) evaluations of all minibatches. Decisions off the path are left alone, and what is
    outside the limits of the search is never taken.

    Args:
        search: its weights are trained.
        batches: validation minibatches, read once for every architecture.
        loss: the scalar loss of a module on a minibatch, such as `task.loss`.
        start: where to begin, by default the most likely architecture.
        passes: the most forward passes (of one architecture over one minibatch) to take; as many as needed, by
            default. A decision that has begun is completed.
        seed: of what is random in the data or the loss.
    """
    if passes is not None:
        check_count("passes", passes)
    return refine_by(SharedLoss(search, batches, loss, seed=seed), search, start=start, passes=passes)


def refine_by(
    judged: SharedLoss, search: Search, *, start: Mapping[str, str] | None = None, passes: int | None = None
) -> Refined:
    """Do what `refine` does with a judge that may know some architectures already; its passes count."""
    current = search.argmax() if start is None else Architecture(start)
    start_loss, moves, unchanged = judged.mean(current), list[Move](), 0
    order = _undecided_first(search)
    for decision in itertools.cycle(order):
        if unchanged == len(order) or (passes is not None and judged.passes >= passes):
            break
        allowed = filter(search.policy.budget.allows, _alternatives(current, decision, judged))
        best = min([current, *allowed], key=judged.mean)  # of equal ones the first
        if best == current:
            unchanged += 1
            continue
        moves.append(Move(decision.name, current[decision.name], best[decision.name], judged.mean(best)))
        current, unchanged = best, 1  # this decision is at its best; all others are to be looked at again
    return Refined(
        current, start_loss, judged.mean(current), tuple(moves), judged.passes, complete=unchanged == len(order)
    )


def _undecided_first(search: Search) -> list[Decision]:
    """The decisions by the entropy of theta, the largest first."""
    entropies = search.distribution.entropy().tolist()
    return [search.space.decisions[row] for row in sorted(range(len(entropies)), key=lambda row: -entropies[row])]


def _alternatives(current: Architecture, decision: Decision, judged: SharedLoss) -> list[Architecture]:
    """Those that differ in one decision; none where that is off the path."""
    if decision.name not in judged.judge(current).reached:
        return []
    others = (name for name in decision.operations if name != current[decision.name])
    return [Architecture({**current, decision.name: name}) for name in others]

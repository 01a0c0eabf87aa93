"""What strategies spend on theta and on their answer: the answer stages, and the cost of a baseline's ranking.

The unit is one forward pass of one architecture over one minibatch.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from advnas import strategies
from advnas.answers.refinement import refine_by
from advnas.answers.shared_loss import SharedLoss
from advnas.answers.uniform import Halving, Ranked, rank_uniform
from advnas.architecture import Architecture
from advnas.records.files import write_atomically
from advnas.search import LossOf, Recorder, Search, SearchRun
from advnas.strategies import Answer
from advnas.structure import Nesting

_ROUNDS = 2  # of a refinement, at most: the second finds that there is no more to gain, as a rule


@dataclass(frozen=True)
class Staged:
    """What an answer stage found, with the shared weights of a search that is over.

    loss: the mean over so many minibatches. architectures: how many were judged. passes: what that took.
    """

    architecture: Architecture
    loss: float
    minibatches: int
    architectures: int
    passes: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `result.json`."""
        return vars(self) | {"architecture": dict(self.architecture)}


def answer_stage(run: SearchRun, recorder: Recorder, answers: Mapping[str, Answer], strategy: str) -> Staged | None:
    """Find the answer that a strategy is to give, where that takes more than a look at the search.

    Every process of a group does the same. Weights and seed decide the result, so a run that is stopped here begins
    the stage again.

    Args:
        run: the search, which is over.
        recorder: of the run; it is asked whether to stop.
        answers: by strategy, of all that are compared; what they cost is what a ranking may cost.
        strategy: whose answer is to be found.
    """
    if answers[strategy] == "refined":
        return _refine(run, recorder)
    return _rank(run, recorder, answers) if answers[strategy] == "ranked" else None


def _rank(run: SearchRun, recorder: Recorder, answers: Mapping[str, Answer]) -> Staged:
    """Rank draws from theta, which is uniform for a baseline; rank 0 writes a line per architecture."""
    group, length = run.search.group, run.length
    minibatches, losses = run.data.validation_pass(length.per_epoch * group.size)
    steps = (length.turns - length.warmup_turns) * group.size
    passes = steps * passes_per_turn(run.search, list(answers))
    if "refined" in answers.values():
        passes += _refining_passes(run.search, minibatches)
    different = Nesting.of(run.search.space).count(at_most=max(1, math.ceil(passes)))
    plan = Halving.costing(passes, different, minibatches)
    ranked = rank_uniform(run.search, losses, plan, on_minibatch=lambda: recorder.end_turn(save=False))
    if group.rank == 0:
        lines = (json.dumps(_line(one)) + "\n" for one in ranked)
        write_atomically(recorder.folder / "ranking.jsonl", "".join(lines))
    best = ranked[0]
    return Staged(best.architecture, best.loss, best.minibatches, plan.architectures, plan.passes)


def _refine(run: SearchRun, recorder: Recorder) -> Staged:
    """Improve the argmax by coordinates on one pass over the validation data."""
    most = run.length.per_epoch * run.search.group.size
    minibatches = run.data.validation_pass(most)[0]
    validation = _ValidationPass(run, most, lambda: recorder.end_turn(save=False))
    judged = SharedLoss(run.search, validation, _loss_of_closure)
    found = refine_by(judged, run.search, passes=_refining_passes(run.search, minibatches))
    return Staged(found.architecture, found.loss, minibatches, judged.passes // minibatches, judged.passes)


def _refining_passes(search: Search, minibatches: int) -> int:
    """The most that a refinement takes, but for the end of the decision that it has begun."""
    return minibatches * (1 + _ROUNDS * sum(size - 1 for size in search.space.sizes))


@dataclass(frozen=True)
class _ValidationPass:
    """The validation minibatches of a run, which can be read again and again without keeping them."""

    run: SearchRun
    most: int
    on_minibatch: Callable[[], object]

    def __iter__(self) -> Iterator[LossOf]:
        minibatches, losses = self.run.data.validation_pass(self.most)
        for loss_of in islice(losses, minibatches):
            yield loss_of
            self.on_minibatch()


def _loss_of_closure(model: Any, loss_of: LossOf) -> Any:
    return loss_of(model)


def passes_per_turn(search: Search, compared: Sequence[str] = ()) -> float:
    """What may be spent per turn: what the strategy declares, or the most expensive of the others that learn."""
    others = [strategies.get(name) for name in compared if strategies.strategy_type(name).learns]
    return max(
        one.architecture_passes(search.space.sizes) / one.architecture_every for one in (search.strategy, *others)
    )


def passes_of(search: Search, staged: Staged | None) -> float:
    """What a search has spent on theta and on its answer."""
    steps = search.architecture_steps * search.group.size
    of_theta = steps * search.strategy.architecture_passes(search.space.sizes)
    return of_theta + (0 if staged is None else staged.passes)


def _line(one: Ranked) -> dict[str, Any]:
    return {"architecture": dict(one.architecture), "loss": one.loss, "minibatches": one.minibatches}

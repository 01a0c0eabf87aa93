"""What strategies spend on theta and on their answer, and the ranking of a baseline that is given as much.

The unit is one forward pass of one architecture over one minibatch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from advnas import strategies
from advnas.answers.uniform import Halving, Ranked, rank_uniform
from advnas.architecture import Architecture
from advnas.records.files import write_atomically
from advnas.search import Recorder, Search, SearchRun


@dataclass(frozen=True)
class Ranking:
    """How the best of many uniform architectures was found: `plan` says how many there were."""

    best: Ranked
    plan: Halving

    @property
    def architecture(self) -> Architecture:
        """The best one."""
        return self.best.architecture

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `result.json`."""
        return _line(self.best) | {"architectures": self.plan.architectures, "passes": self.plan.passes}


def rank(run: SearchRun, recorder: Recorder, compared: Sequence[str]) -> Ranking:
    """Rank uniform architectures at the end of a search, at the cost of the dearest strategy compared.

    Every process of a group does the same, and rank 0 writes `ranking.jsonl`: a line per architecture. Weights and
    seed decide the result, so a run that is stopped here ranks again from the start.
    """
    group, length = run.search.group, run.length
    minibatches, losses = run.data.validation_pass(length.per_epoch * group.size)
    steps = (length.turns - length.warmup_turns) * group.size
    plan = Halving.costing(steps * passes_per_turn(run.search, compared), run.search.space.size, minibatches)
    ranked = rank_uniform(run.search, losses, plan, on_minibatch=lambda: recorder.end_turn(save=False))
    if group.rank == 0:
        lines = (json.dumps(_line(one)) + "\n" for one in ranked)
        write_atomically(recorder.folder / "ranking.jsonl", "".join(lines))
    return Ranking(ranked[0], plan)


def passes_per_turn(search: Search, compared: Sequence[str] = ()) -> float:
    """What may be spent per turn of the loop: what the strategy declares, or the dearest of others that learn."""
    others = [strategies.get(name) for name in compared if strategies.strategy_type(name).learns]
    return max(
        strategies.architecture_passes(one, search.space.sizes) / strategies.architecture_every(one)
        for one in (search.strategy, *others)
    )


def passes_of(search: Search, ranking: Ranking | None) -> float:
    """What a search has spent on theta and on its answer."""
    steps = search.architecture_steps * search.group.size
    of_theta = steps * strategies.architecture_passes(search.strategy, search.space.sizes)
    return of_theta + (0 if ranking is None else ranking.plan.passes)


def _line(one: Ranked) -> dict[str, Any]:
    return {"architecture": dict(one.architecture), "loss": one.loss, "minibatches": one.minibatches}

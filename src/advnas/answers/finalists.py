"""Finalists: the best answers a search can propose, and a contest that trains them alone."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from advnas.answers.alone import Fresh, train_alone
from advnas.answers.ranking import Scored, propose
from advnas.answers.refinement import refine_by
from advnas.answers.shared_loss import SharedLoss
from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.randomness import generator, seed_of
from advnas.retrain import Recipe
from advnas.search import Search
from advnas.structure import Nesting
from advnas.task import Task


@dataclass(frozen=True)
class Finalists:
    """The best proposals by the shared weights, best first. passes: forward passes that finding them took."""

    ranked: tuple[Scored, ...]
    passes: int


def finalists(search: Search, task: Task, k: int = 4, *, draws: int = 16, seed: int = 0) -> Finalists:
    """Propose the argmax, the process best, the refined argmax and draws; rank them by the shared weights.

    Args:
        search: its weights are trained.
        task: its validation data and loss judge.
        k: how many to return.
        draws: how many different architectures are proposed before the refined one joins them.
        seed: of the draws, and of what is random in the data or the loss.
    """
    check_count("k", k)
    check_count("draws", draws)
    judged = SharedLoss(search, task.validation, task.loss, seed=seed_of(seed, 1))
    sources = propose(search, draws, generator(seed, 0))
    refined = refine_by(judged, search).architecture
    sources.setdefault(Nesting.of(search.space).canonical(refined), "refined")
    scored = [Scored(architecture, judged.mean(architecture), source) for architecture, source in sources.items()]
    best = sorted(scored, key=lambda one: one.score)[:k]
    return Finalists(tuple(best), judged.passes)


@dataclass(frozen=True)
class Round:
    """One round of a contest: who took part, for how many epochs each was trained alone, and the scores.

    A score is not a number where a training has diverged.
    """

    architectures: tuple[Architecture, ...]
    epochs: int
    scores: tuple[float, ...]

    @property
    def better_half(self) -> list[Architecture]:
        """Those who go on, best first; none whose score is not a number."""
        known = [number for number, score in enumerate(self.scores) if not math.isnan(score)]
        order = sorted(known, key=lambda number: self.scores[number])
        return [self.architectures[number] for number in order[: math.ceil(len(self.scores) / 2)]]


@dataclass(frozen=True)
class Contest:
    """Successive halving. epochs: of all trainings together."""

    rounds: tuple[Round, ...]

    @property
    def winner(self) -> Architecture:
        """The best of the last round."""
        return self.rounds[-1].better_half[0]

    @property
    def epochs(self) -> int:
        """Of all trainings together."""
        return sum(one.epochs * len(one.architectures) for one in self.rounds)


def halve(
    search: Search,
    architectures: Sequence[Architecture],
    task: Task,
    *,
    epochs: int,
    recipe: Recipe = Recipe(),
    fresh: Fresh | None = None,
    seed: int = 0,
) -> Contest:
    """Train architectures alone, keep the better half, train these anew for twice as long, until one is left.

    Every round costs the same where the architectures are a power of two. Otherwise halves are rounded up: later
    rounds cost more, but less than twice the first one. A training starts anew, so that its learning rate falls to
    0 within its own length.

    Args:
        search: of whose space they are.
        architectures: such as those of `finalists`; of several that are the same network, the first.
        task: trains them, and its validation data decide.
        epochs: of each training in the first round.
        recipe: how each is trained.
        fresh: the function that makes the model, where layers cannot be initialised by `reset_parameters`. Without
            it frozen weights stay as they are.
        seed: of weights and data, the same for all of a round.

    Raises:
        ValueError: there are no architectures, or no score of a round is a number.
    """
    check_count("epochs", epochs)
    if not architectures:
        raise ValueError("A contest needs at least one architecture, got none.")
    rounds: list[Round] = []
    left = _different(search, list(map(Architecture, architectures)))
    while len(left) > 1 or not rounds:
        length, own = epochs * 2 ** len(rounds), seed_of(seed, len(rounds))
        train = partial(train_alone, search, epochs=length, recipe=recipe, fresh=fresh, seed=own)
        scores = tuple(train(one, task) for one in left)
        _check_scores(scores)
        rounds.append(Round(tuple(left), length, scores))
        left = rounds[-1].better_half
    return Contest(tuple(rounds))


def _different(search: Search, architectures: Sequence[Architecture]) -> list[Architecture]:
    """Of architectures that are the same network, the first."""
    nesting, found = Nesting.of(search.space), dict[Architecture, Architecture]()
    for one in architectures:
        found.setdefault(nesting.canonical(one), one)
    return list(found.values())


def _check_scores(scores: Sequence[float]) -> None:
    diverged = sum(map(math.isnan, scores))
    if diverged == len(scores):
        raise ValueError(
            "The score of every architecture of the contest is not a number, so none can win. Check the task and "
            "recipe.score, or lower the learning rate: halve(..., recipe=Recipe(optimizer=...))."
        )
    if diverged:
        told = f"The scores of {diverged} of {len(scores)} architectures of the contest are not numbers"
        warnings.warn(f"{told}: these are out.", stacklevel=3)

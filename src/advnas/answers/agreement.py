"""What the shared weights know: do they rank architectures as training alone does?"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from advnas.answers.alone import Fresh, train_alone
from advnas.answers.ranking import draw_different
from advnas.answers.shared_loss import SharedLoss
from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.distribution import Distribution
from advnas.randomness import generator, seed_of
from advnas.retrain import Recipe
from advnas.search import Search
from advnas.structure import Nesting
from advnas.task import Task

LEAST = 5
"""Architectures below which the interval of tau is not defined."""
REPEATS = 3
"""Trainings of one architecture, by which the noise of training is known."""
_DRAWS, _ALONE = range(2)  # purposes of a seed


@dataclass(frozen=True)
class Agreement:
    """How well the ranking by shared weights agrees with that by training alone.

    architectures: drawn uniformly. shared: their validation losses with the shared weights. alone: after training
    alone, for `epochs` epochs each. repeated: the first of them, trained alone with other seeds. tau: Kendall's,
    between the two rankings; low, high: its 95 % interval. split_half: tau between the shared rankings on every
    other minibatch and on the rest. passes: forward passes of one architecture over one minibatch with the shared
    weights.
    """

    architectures: tuple[Architecture, ...]
    shared: tuple[float, ...]
    alone: tuple[float, ...]
    repeated: tuple[float, ...]
    tau: float
    low: float
    high: float
    split_half: float
    epochs: int
    passes: int

    @property
    def differ(self) -> bool:
        """Whether architectures trained alone differ by more than the noise of training (F test at 95 %)."""
        from scipy import stats  # type: ignore[import-untyped]  # here, since it takes a second

        between, noise = statistics.variance(self.alone), statistics.variance((self.alone[0], *self.repeated))
        critical = float(stats.f.ppf(0.95, len(self.alone) - 1, len(self.repeated)))
        return between > critical * noise

    @property
    def agrees(self) -> bool:
        """Whether the interval of tau is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        tau = f"tau {self.tau:.2f} ({self.low:.2f} to {self.high:.2f})"
        trained = f"{len(self.alone)} architectures trained alone for {self.epochs} epochs"
        if not self.differ:
            return (
                f"Nothing can be learnt here: {trained} differ no more than one of them does when it is trained "
                f"again with another seed; {tau}. Give the decisions operations that differ, put more of the "
                "network into the choices, or train for longer."
            )
        if self.agrees:
            return f"The shared weights rank architectures like training alone does: {tau}, {trained}."
        helps = "What helps: a longer warm-up, and more of the network inside the choices."
        if self.tau > 0:
            return (
                f"Whether the shared weights rank architectures like training alone does is open: {tau}, "
                f"{trained}, and the interval includes 0. {helps}"
            )
        return (
            f"The shared weights do not rank architectures like training alone does: {tau}, {trained}. A search "
            f"cannot be expected to work on this parent. {helps}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `result.json`."""
        own = {name: getattr(self, name) for name in ("tau", "low", "high", "split_half", "epochs", "passes")}
        lists = {name: list(getattr(self, name)) for name in ("shared", "alone", "repeated")}
        return {
            "architectures": [dict(one) for one in self.architectures],
            **lists,
            **{name: value if math.isfinite(value) else None for name, value in own.items()},
            "differ": self.differ,
        }


def agreement(
    search: Search,
    task: Task,
    *,
    epochs: int,
    architectures: int = 8,
    recipe: Recipe = Recipe(),
    fresh: Fresh | None = None,
    seed: int = 0,
) -> Agreement:
    """Train a few architectures alone, and compare their ranking with that of the shared weights.

    It takes as many trainings as there are architectures, and two more of the first one. The search is left exactly
    as it was.

    Args:
        search: its weights are trained.
        task: data and loss.
        epochs: of each training alone; short ones are enough, if they are long enough for differences to show.
        architectures: how many, at least 5. They are drawn uniformly, whatever theta has learnt.
        recipe: how each is trained.
        fresh: the function that makes the model, where layers cannot be initialised by `reset_parameters`. Without
            it frozen weights stay as they are.
        seed: of the draws, and of the weights and data of the trainings.
    """
    check_count("architectures", architectures, least=LEAST)
    check_count("epochs", epochs)
    check_rankable(search)
    uniform = Distribution(torch.where(search.distribution.logits.isfinite(), 0.0, -torch.inf))
    chosen = draw_different(uniform, architectures, generator(seed, _DRAWS), Nesting.of(search.space))
    drawn = [search.space.architecture(one) for one in chosen]
    judged = SharedLoss(search, task.validation, task.loss, seed=seed)
    losses = [judged.judge(one).losses for one in drawn]

    def alone(architecture: Architecture, repeat: int) -> float:
        own = seed_of(seed, _ALONE, repeat)
        return train_alone(search, architecture, task, epochs=epochs, recipe=recipe, fresh=fresh, seed=own)

    trained = tuple(alone(one, 0) for one in drawn)
    shared = tuple(map(statistics.fmean, losses))
    tau = kendall(shared, trained)
    low, high = interval(tau, len(drawn))
    return Agreement(
        architectures=tuple(drawn),
        shared=shared,
        alone=trained,
        repeated=tuple(alone(drawn[0], repeat) for repeat in range(1, REPEATS)),
        tau=tau,
        low=low,
        high=high,
        split_half=split_half(losses),
        epochs=epochs,
        passes=judged.passes,
    )


def check_rankable(search: Search) -> None:
    """Raise ValueError if a space has too few different networks for a ranking."""
    count = Nesting.of(search.space).count(LEAST)
    if count < LEAST:
        raise ValueError(
            f"This space has {count} architectures, and a ranking needs at least {LEAST}. Leave out the "
            "diagnosis, train them all alone and compare them."
        )


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Compute Kendall's tau-b between two rankings; 0 where one of them is all ties."""
    from scipy import stats

    tau = float(stats.kendalltau(one, other).statistic)
    return 0.0 if math.isnan(tau) else tau


def interval(tau: float, count: int) -> tuple[float, float]:
    """Compute the 95 % interval of Kendall's tau: Fisher's transform, variance 0.437 / (n - 4).

    Fieller, Hartley, Pearson: Tests for rank correlation coefficients I, Biometrika 1957.
    """
    if abs(tau) >= 1:
        tau = math.copysign(1 - 1 / count**2, tau)  # as if a fraction of one pair were out of order
    margin = 1.96 * math.sqrt(0.437 / (count - 4))
    return math.tanh(math.atanh(tau) - margin), math.tanh(math.atanh(tau) + margin)


def split_half(losses: Sequence[Sequence[float]]) -> float:
    """Compute tau between the rankings by every other minibatch and by the rest; nan for a single minibatch.

    Args:
        losses: [architectures][minibatches].
    """
    if len(losses[0]) < 2:
        return math.nan
    halves = ([statistics.fmean(one[half::2]) for one in losses] for half in range(2))
    return kendall(*halves)

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
_DRAWS, _ALONE = range(2)  # purposes of a seed


@dataclass(frozen=True)
class Agreement:
    """How well the ranking by shared weights agrees with that by training alone.

    architectures: drawn uniformly. shared: their validation losses with the shared weights. alone: after training
    alone, for `epochs` epochs each. again: the first of them, each trained alone once more with another seed. tau:
    Kendall's, between the two rankings; low, high: its 95 % interval. split_half: tau between the shared rankings
    on every other minibatch and on the rest. passes: forward passes of one architecture over one minibatch with the
    shared weights.
    """

    architectures: tuple[Architecture, ...]
    shared: tuple[float, ...]
    alone: tuple[float, ...]
    again: tuple[float, ...]
    tau: float
    low: float
    high: float
    split_half: float
    epochs: int
    passes: int

    @property
    def differ(self) -> bool:
        """Whether trainings show that architectures differ: their variance is above 0 (F test at 95 %)."""
        between, noise = self._variances(0)
        return between > self._quantile(0.95) * noise

    @property
    def alike(self) -> bool:
        """Whether architectures differ by less than trainings of one do: the 95 % bound of the ratio is below 1."""
        between, noise = self._variances(1)
        return between <= self._quantile(0.05) * noise

    def _variances(self, ratio: float) -> tuple[float, float]:
        """Estimate the noise twice, independently: across architectures, and within those that were trained twice.

        The quotient has an F distribution where the variance of architectures is `ratio` times that of the noise.
        First trainings share a seed, and so do second ones: what a seed does to all architectures alike cancels.
        """
        twice = list(zip(self.alone, self.again, strict=False))
        once = self.alone[len(twice) :]
        across = _squares([statistics.fmean(pair) for pair in twice]) / (ratio + 1 / 2) + _squares(once) / (
            ratio + 1
        )
        within = _squares([first - second for first, second in twice]) / 2
        return across / (len(self.alone) - 2), within / (len(twice) - 1)

    def _quantile(self, level: float) -> float:
        from scipy import stats  # type: ignore[import-untyped]  # here, since it takes a second

        return float(stats.f.ppf(level, len(self.alone) - 2, len(self.again) - 1))

    @property
    def agrees(self) -> bool:
        """Whether the interval of tau is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        tau = f"tau {self.tau:.2f} ({self.low:.2f} to {self.high:.2f})"
        trained = f"{len(self.alone)} architectures trained alone for {self.epochs} epochs"
        if self.agrees:  # which shows that they differ, too
            return f"The shared weights rank architectures like training alone does: {tau}, {trained}."
        if self.alike:
            return (
                f"Little can be learnt here: {trained} differ by less than one of them does when it is trained "
                f"again with another seed (significant at 95 %); {tau}. Give the decisions operations that differ, "
                "put more of the network into the choices, or train for longer."
            )
        if not self.differ:
            return (
                f"Too few trainings to tell whether architectures differ: {trained}, {len(self.again)} of them "
                f"twice, and the noise of training may explain all differences; {tau}. Diagnose with more "
                "architectures or longer trainings, and give the decisions operations that differ."
            )
        helps = "What helps: a longer warm-up, and more of the network inside the choices."
        if self.high > 0:
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
        lists = {name: list(getattr(self, name)) for name in ("shared", "alone", "again")}
        return {
            "architectures": [dict(one) for one in self.architectures],
            **lists,
            **{name: value if math.isfinite(value) else None for name, value in own.items()},
            "differ": self.differ,
            "alike": self.alike,
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

    It takes one training of every architecture, and another one of the first half of them, by which the noise of
    training is known. The search is left exactly as it was.

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
        again=tuple(alone(one, 1) for one in drawn[: len(drawn) // 2]),
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


def _squares(values: Sequence[float]) -> float:
    center = statistics.fmean(values)
    return sum((value - center) ** 2 for value in values)


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

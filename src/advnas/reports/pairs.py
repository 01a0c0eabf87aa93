"""Paired comparisons: the same seed, so the same data, weights at the start and warm-up, under two strategies."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from advnas.reports.contents import Measure
from advnas.reports.judging import Judged
from advnas.reports.study import StudyRecords

ENOUGH = 6
"""Pairs below which nothing is claimed: with 5 the smallest p that Wilcoxon's test can give is 0.06."""
_LEVEL = 0.05


class Difference(NamedTuple):
    """How much better a strategy is than another over pairs of runs, positive where it is.

    low, high: the 95 % interval of the mean, by Student's t over the pairs. p: of Wilcoxon's signed-rank test,
    two-sided.
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int

    @property
    def enough(self) -> bool:
        """Whether there are enough pairs to claim anything."""
        return self.pairs >= ENOUGH

    @property
    def significant(self) -> bool:
        """Whether there are enough pairs, and the interval and the signed ranks both exclude 0 at 95 %."""
        return self.enough and not self.low <= 0 <= self.high and self.p < _LEVEL


class Pairing(NamedTuple):
    """Two strategies on the seeds that both have, by one measure. ours, theirs: their means over these seeds."""

    strategy: str
    other: str
    measure: str
    ours: float
    theirs: float
    difference: Difference

    @property
    def digits(self) -> int:
        """How many to write behind the point: more for shares and losses than for percents and perplexities."""
        return 4 if max(abs(self.ours), abs(self.theirs)) < 5 else 2


def difference(gains: Sequence[float]) -> Difference:
    """Describe the differences of pairs, positive where ours is better.

    The interval is infinitely wide for a single pair, and where a difference is not finite.
    """
    from scipy import stats  # type: ignore[import-untyped]  # here, since it takes a second

    mean = statistics.fmean(gains)
    if len(gains) < 2 or not all(map(math.isfinite, gains)):
        return Difference(mean, -math.inf, math.inf, 1.0, len(gains))
    margin = stats.t.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) / math.sqrt(len(gains))
    p = float(stats.wilcoxon(gains).pvalue) if any(gains) else 1.0
    return Difference(mean, mean - margin, mean + margin, p, len(gains))


def compare(judged: Judged, strategy: str, other: str) -> Pairing | None:
    """Pair the runs of two strategies by seed, by the first measure; None where they have no seed in common."""
    ours, theirs = judged[strategy], judged[other]
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    measure = ours[common[0]][0]
    values = [(ours[seed][0].value, theirs[seed][0].value) for seed in common]
    sign = 1 if measure.more_is_better else -1
    found = difference([sign * (own - its) for own, its in values])
    means = [statistics.fmean(side) for side in zip(*values, strict=True)]
    return Pairing(strategy, other, measure.name, means[0], means[1], found)


def all_pairings(study: StudyRecords, judged: Judged) -> list[Pairing]:
    """Every strategy against each baseline, and those that learn against the best other one that learns."""
    found = (compare(judged, name, other) for name, other in _opponents(study, judged))
    return [pairing for pairing in found if pairing is not None]


def _opponents(study: StudyRecords, judged: Judged) -> Iterator[tuple[str, str]]:
    baselines = [name for name in study.baselines if name in judged]
    learning = [name for name in study.learning if name in judged]
    ranked = sorted(learning, key=lambda name: badness(judged[name]))
    for name in learning:
        yield from ((name, other) for other in baselines)
        yield from ((name, other) for other in [other for other in ranked if other != name][:1])
    for place, name in enumerate(baselines):
        yield from ((name, other) for other in baselines[:place])


def badness(runs: Mapping[int, tuple[Measure, ...]]) -> float:
    """Average the first measure over the seeds, turned around where more is better; infinite if it is no number."""
    mean = statistics.fmean(worth[0].value * (-1 if worth[0].more_is_better else 1) for worth in runs.values())
    return math.inf if math.isnan(mean) else mean

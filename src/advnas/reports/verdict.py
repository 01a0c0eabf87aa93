"""What a search was worth, in words: did it beat chance, did it settle, can its answer be trusted."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from advnas import strategies
from advnas.records.journal import read_journal
from advnas.reports.judging import judge
from advnas.reports.study import Accuracies, Measure, RunRecords, StudyRecords

_UNDECIDED = 0.1  # an operation that is less than this more likely than the next has not won
_SETTLED = 0.5  # of the entropy at the start
_MANY_FREE = 0.75  # of the edges that carry something


class Remark(NamedTuple):
    """One thing worth knowing. good: True, False, or None where it is neither."""

    good: bool | None
    text: str


class Gain(NamedTuple):
    """By how much a strategy is better than another, positive where it is, with its 95 % interval over seeds."""

    mean: float
    low: float
    high: float


def verdict(study: StudyRecords, table: Accuracies | None = None) -> list[Remark]:
    """All remarks on the searches of a study that learn; the baselines are what they are compared with.

    table: knows what an answer is worth that was not retrained.
    """
    return [*against_baselines(study, table), *conduct(study)]


def against_baselines(study: StudyRecords, table: Accuracies | None) -> list[Remark]:
    """Whether the answers are worth more than those of an equal-cost baseline, by the first measure."""
    judged = judge(study, table)
    values = {name: [worth[0].value for worth in own] for name, own in judged.items()}
    learning = [name for name in study.learning if name in values]
    baselines = [name for name in study.baselines if name in values]
    if learning and not baselines:
        missing = f"{' or '.join(strategies.baselines()).capitalize()} search was not run"
        return [Remark(None, f"{missing}: whether {' or '.join(learning)} beats chance is not known.")]
    return [
        _compare(name, values[name], baseline, values[baseline], judged[name][0][0])
        for name in learning
        for baseline in baselines
    ]


def conduct(study: StudyRecords) -> list[Remark]:
    """How the searches that learn went, whatever their answers are worth."""
    remarks: list[Remark] = []
    for strategy in study.learning:
        runs = [run for run in study.of(strategy) if run.finished]
        if runs:
            remarks += _collapse(strategy, runs)
            remarks += _certainty(strategy, runs)
            remarks += _noise(strategy, runs)
    return remarks


def gain(ours: Sequence[float], theirs: Sequence[float], *, more_is_better: bool) -> Gain:
    """The difference of two means and Welch's interval for it; infinitely wide with a single value on a side."""
    sign = 1 if more_is_better else -1
    mean = sign * (statistics.fmean(ours) - statistics.fmean(theirs))
    if min(len(ours), len(theirs)) < 2:
        return Gain(mean, -math.inf, math.inf)
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    squared = sum(parts)
    if squared == 0:
        return Gain(mean, mean, mean)
    freedom = squared**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (ours, theirs), strict=True)
    )
    margin = t_quantile(freedom) * math.sqrt(squared)
    return Gain(mean, mean - margin, mean + margin)


def t_quantile(freedom: float, tail: float = 0.025) -> float:
    """Student's t that is exceeded with probability `tail`; degrees of freedom need not be whole."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _t_tail(t: float, freedom: float) -> float:
    """P(T > t), by Simpson's rule. With T = sqrt(freedom) tan(phi) the density is c cos(phi)^(freedom - 1)."""
    pieces = 2000
    start, end = math.atan(t / math.sqrt(freedom)), math.pi / 2
    step = (end - start) / pieces
    heights: list[float] = [
        max(0.0, math.cos(start + number * step)) ** (freedom - 1) for number in range(pieces + 1)
    ]
    area = step / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return area * math.exp(scale)


def _compare(
    strategy: str, ours: Sequence[float], baseline: str, theirs: Sequence[float], measure: Measure
) -> Remark:
    found = gain(ours, theirs, more_is_better=measure.more_is_better)
    rival = f"equal-cost {baseline} search by {measure.name}"
    means = f"{statistics.fmean(ours):.2f} against {statistics.fmean(theirs):.2f}"
    seeds = f"{len(ours)} and {len(theirs)} seeds"
    if found.low > 0:
        told = f"{means}, ahead by {_interval(found)} over {seeds}: significant at 95 %."
        return Remark(True, f"{strategy} beats {rival}: {told}")
    if found.high < 0:
        told = f"{means}, behind by {_interval(found, -1)} over {seeds}. Do not use this answer."
        return Remark(False, f"{strategy} does not beat {rival}: {told}")
    told = "one seed has no interval. Run more with --seeds."
    if math.isfinite(found.high):
        told = f"a difference of {_interval(found)} over {seeds}. Not significant: the interval includes 0."
    return Remark(None, f"Whether {strategy} beats {rival} is open: {means}, {told}")


def _interval(found: Gain, sign: int = 1) -> str:
    low, high = sorted((sign * found.low, sign * found.high))
    return f"{sign * found.mean:.2f} (95 % interval {low:.2f} to {high:.2f})"


def _collapse(strategy: str, runs: Sequence[RunRecords]) -> Iterator[Remark]:
    """Skips and poolings train fast and win early in many searches; an answer made of them is rarely good."""
    shares = [share for run in runs if (share := _free_share(run)) is not None]
    if not shares:
        return
    collapsed = sum(share > _MANY_FREE for share in shares)
    mean = f"{100 * statistics.fmean(shares):.0f} % of the operations that {strategy} chose have no weights"
    if collapsed:
        seeds = f"in {collapsed} of {len(shares)} seeds nearly all"
        yield Remark(False, f"{mean}, {seeds}: the search may have collapsed onto what trains fastest.")
    else:
        yield Remark(True, f"{mean}: no collapse onto operations without weights.")


def _free_share(run: RunRecords) -> float | None:
    """Of the decisions where operations with and without weights compete, how many went to one without."""
    sizes = run.result.operation_sizes if run.result else {}
    cell = run.answer(run.latest)
    contested = [name for name, own in sizes.items() if min(own.values()) == 0 < max(own.values())]
    if not contested or cell is None:
        return None
    return sum(sizes[name][cell[name]] == 0 for name in contested) / len(contested)


def _certainty(strategy: str, runs: Sequence[RunRecords]) -> Iterator[Remark]:
    shares = [run.records[-1].entropy / run.records[0].entropy for run in runs if run.records[0].entropy > 0]
    share = statistics.fmean(shares) if shares else 0.0
    told = f"The entropy of {strategy}'s decisions fell to {100 * share:.0f} % of its start"
    if share <= _SETTLED:
        yield Remark(True, f"{told}: the search has settled.")
    else:
        yield Remark(False, f"{told}: it has not settled. Search longer, or with a larger learning rate of theta.")
    open_ones = {run.seed: undecided(run.records[-1].probabilities) for run in runs}
    named = [f"seed {seed}: {', '.join(names)}" for seed, names in open_ones.items() if names]
    if named:
        yield Remark(None, f"Undecided in {strategy}, two operations being as good as equal: {'; '.join(named)}.")


def undecided(probabilities: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Decisions whose two most likely operations are close."""
    ranked = {name: sorted(row.values(), reverse=True) for name, row in probabilities.items()}
    return [name for name, row in ranked.items() if len(row) > 1 and row[0] - row[1] < _UNDECIDED]


def _noise(strategy: str, runs: Sequence[RunRecords]) -> Iterator[Remark]:
    """Over the steps of theta: the standard deviation of the signal at a decision, in units of its mean."""
    worst: tuple[float, str, int] | None = None
    for run in runs:
        for name, values in _signals(run.folder / "metrics.jsonl").items():
            mean = abs(statistics.fmean(values))
            ratio = statistics.stdev(values) / mean if mean and len(values) > 1 else math.inf
            if math.isfinite(ratio):
                worst = max(worst or (0.0, "", 0), (ratio, f"{name} of seed {run.seed}", len(values)))
    if worst is not None:
        ratio, where, steps = worst
        enough = ratio < math.sqrt(steps) / 2
        yield Remark(
            None,
            f"The noisiest signal {strategy} learnt from was at {where}: it scatters {ratio:.1f} times as far as "
            f"its mean is from 0, over {steps} steps, "
            + ("so its direction is known." if enough else "so its direction is a guess."),
        )


def _signals(path: Path) -> dict[str, list[float]]:
    """dr/dw_i of every decision in every step of theta; empty for strategies that learn from the loss alone."""
    signals: dict[str, list[float]] = {}
    if path.exists():
        for line in read_journal(path):
            for name, value in line.get("advantages", {}).items():
                signals.setdefault(name, []).append(value)
    return signals

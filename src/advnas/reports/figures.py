"""Figures of a study: what its searches answer, how sure they are, and what that costs."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from advnas import strategies
from advnas.reports.cells import operation_colors
from advnas.reports.contents import Record
from advnas.reports.drawing import MARKERS, SIZE, Drawing, draw_dot, finish, legend, look_of
from advnas.reports.literal import literal
from advnas.reports.sizes import draw_sizes
from advnas.reports.study import Accuracies, RunRecords, StudyRecords

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TOP = 6.0  # points of accuracy below the best that the close view shows
_ROW = 1.5  # inches: the least that a row of panels needs
_BANDS = "Lines are the median over the seeds, bands reach from the lowest to the highest."


class Point(NamedTuple):
    """One moment of a strategy, over its seeds."""

    epoch: float
    seconds: float
    low: float
    middle: float
    high: float


def draw_study(study: StudyRecords, table: Accuracies | None) -> Iterator[Drawing]:
    """What the searches answer and how sure they are, over all seeds; accuracies need a table."""
    dense = [name for name in study.strategies if is_dense(name)]
    if study.retrains:
        yield from _draw_retrained(study)
    elif table is not None:
        yield _draw_accuracy_over_epochs(study, table, [name for name in study.strategies if name not in dense])
        if dense:
            sparse = [name for name in study.learning if name not in dense]
            references = dict.fromkeys([*sparse[:1], *study.baselines])
            yield _draw_accuracy_over_seconds(study, table, [*references, *dense])
    yield from draw_sizes(study, table)
    yield _draw_entropy(study)
    if study.retrains:
        yield from _draw_loss(study)


def draw_probabilities(study: StudyRecords) -> Iterator[Drawing]:
    """What happens at every decision, in the first run of every strategy whose theta moves."""
    for name in study.learning:
        yield _draw_probabilities(study.of(name)[0])


def is_dense(name: str) -> bool:
    """Whether a step of theta executes all candidates, so that its epochs cost more than those of the others."""
    return name in strategies.names() and strategies.strategy_type(name).architecture_operations is None


def _draw_accuracy_over_epochs(study: StudyRecords, table: Accuracies, names: Sequence[str]) -> Drawing:
    return Drawing(
        "accuracy-over-epochs",
        "Accuracy of the answer over the search",
        "Test accuracy that the table knows for the cell each search would answer with at that moment: the argmax "
        "of theta, the process best, or at the end the best of many uniform cells by the shared weights. All of "
        f"these train one operation per edge at a time. {_BANDS}",
        _accuracy_figure(study, table, names, lambda point: point.epoch, _epoch_label(study.runs)),
    )


def _draw_accuracy_over_seconds(study: StudyRecords, table: Accuracies, names: Sequence[str]) -> Drawing:
    return Drawing(
        "accuracy-over-seconds",
        "Accuracy of the answer over search time",
        f"Strategies that execute all operations of an edge (dashed), next to those that run one. {_BANDS} "
        "Seconds are the median over the seeds and do not include the warm-up.",
        _accuracy_figure(study, table, names, lambda point: point.seconds, "search time [s]"),
    )


def _accuracy_figure(
    study: StudyRecords, table: Accuracies, names: Sequence[str], place: Callable[[Point], float], label: str
) -> "Figure":
    from matplotlib.figure import Figure

    curves = {name: _points(study.of(name), lambda run, record: _accuracy(run, record, table)) for name in names}
    best = _best_accuracy(study.runs[0], table)
    lowest = min((point.low for points in curves.values() for point in points), default=best)
    figure = Figure(figsize=SIZE, layout="constrained")
    close_view_needed = lowest < best - _TOP
    panels = figure.subplots(1, 2, width_ratios=(3, 2)) if close_view_needed else [figure.subplots()]
    for axes in panels:
        axes.axhline(best, color="#333333", lw=0.8, ls=(0, (1, 3)), label="best of all cells")
        for number, (name, points) in enumerate(curves.items()):
            _draw_curve(axes, name, number, points, place)
        finish(axes, label)
    panels[0].set_ylabel("test accuracy of the answer [%]")
    if close_view_needed:
        panels[0].set(ylim=(best - _TOP, best + 0.2), title=f"the best {_TOP:.0f} points")
        panels[1].set(title="the whole range")
    legend(figure, panels[0])
    return figure


def _draw_curve(
    axes: "Axes", name: str, number: int, points: Sequence[Point], place: Callable[[Point], float]
) -> None:
    timed = [point for point in points if not math.isnan(place(point))]
    places = [place(point) for point in timed]
    lows, highs = [point.low for point in timed], [point.high for point in timed]
    axes.fill_between(places, lows, highs, color=look_of(name).color, alpha=0.1, lw=0)
    _draw_line(axes, name, number, places, [point.middle for point in timed])


def _draw_line(axes: "Axes", name: str, number: int, places: Sequence[float], values: Sequence[float]) -> None:
    color, line, width = look_of(name)
    # Where lines coincide their markers lie in each other: later ones are smaller.
    size = max(3.5, 8 - 0.5 * number)
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(places, values, line, color=color, lw=width, marker=marker, markersize=size, label=name)


def _draw_retrained(study: StudyRecords) -> Iterator[Drawing]:
    judged = {
        name: {run.seed: run.evaluation.measures[0].value for run in study.of(name) if run.evaluation}
        for name in study.strategies
    }
    finite = {
        name: {seed: value for seed, value in values.items() if math.isfinite(value)}
        for name, values in judged.items()
    }
    drawn = {name: values for name, values in finite.items() if values}
    if drawn:
        diverged = sum(map(len, judged.values())) - sum(map(len, drawn.values()))
        measure = study.measures[0]
        yield Drawing(
            "retrained",
            f"{measure.name.capitalize()} of what was found, retrained",
            "The answer of every search after it was retrained from scratch: one dot per seed, a bar at the mean. "
            f"Further to the {'right' if measure.more_is_better else 'left'} is better."
            + _references([name for name in study.baselines if name in drawn])
            + (f" Retrainings that diverged and are not drawn: {diverged}." if diverged else ""),
            _dot_figure(drawn, measure.name, study.baselines),
        )


def _references(names: Sequence[str]) -> str:
    if not names:
        return ""
    lines = "The dotted line is the mean" if len(names) == 1 else "Dotted lines are the means"
    return f" {lines} of {' and '.join(names)}."


def _dot_figure(values: Mapping[str, Mapping[int, float]], label: str, baselines: Sequence[str]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for place, (name, own) in enumerate(values.items()):
        color, mean = look_of(name).color, statistics.fmean(own.values())
        ends = (place - 0.3, place, place + 0.3)
        axes.plot([mean] * len(ends), ends, color=color, lw=2.4, label=f"{name}, mean")
        for number, (seed, value) in enumerate(own.items()):
            # Seeds that found the same cell would be one dot: each seed has a height of its own.
            height = place + 0.36 * ((number + 0.5) / len(own) - 0.5)
            draw_dot(axes, name, seed, (value, height))
        if name in baselines:
            axes.axvline(mean, color=color, lw=0.8, ls=(0, (1, 3)), zorder=0)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    finish(axes, label)
    return figure


def _draw_entropy(study: StudyRecords) -> Drawing:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(study.strategies):
        moments = _by_epoch(study.of(name))
        means = [statistics.fmean(record.entropy for _, record in measured) for measured in moments.values()]
        _draw_line(axes, name, number, list(moments), means)
    # Above lines that stay level there would be no room for their markers.
    highest = max(record.entropy for run in study.runs for record in run.records)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.02 * highest))
    axes.set_ylabel("entropy of a decision [nats]")
    finish(axes, _epoch_label(study.runs))
    legend(figure, axes)
    return Drawing(
        "entropy",
        "Entropy of the architecture distribution",
        "Mean over the decisions and the seeds. It starts at the logarithm of the number of operations, where "
        "nothing is decided, and reaches 0 when every decision is certain.",
        figure,
    )


def _draw_loss(study: StudyRecords) -> Iterator[Drawing]:
    from matplotlib.figure import Figure

    found = {name: _points(study.of(name), lambda run, record: record.loss) for name in study.strategies}
    curves = {name: points for name, points in found.items() if points}
    if not curves:
        return
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        _draw_curve(axes, name, number, points, lambda point: point.epoch)
    # A seed that diverges for a while would leave a line at the bottom of an empty figure.
    drawn = [point for points in curves.values() for point in points]
    lowest, highest = min(point.low for point in drawn), max(point.middle for point in drawn)
    if lowest < highest:
        axes.set_ylim(lowest - 0.05 * (highest - lowest), highest + 0.15 * (highest - lowest))
    axes.set_ylabel("loss of theta's steps")
    finish(axes, _epoch_label(study.runs))
    legend(figure, axes)
    yield Drawing(
        "loss",
        "Loss of the steps of theta",
        "Mean loss since the measurement before, of the architectures that each strategy tried, with the "
        f"weights that they share. {_BANDS} It tells how the search went, not what its answer is worth.",
        figure,
    )


def _draw_probabilities(run: RunRecords) -> Drawing:
    from matplotlib.figure import Figure

    decisions = run.records[0].probabilities
    columns = min(3, len(decisions))
    rows = -(-len(decisions) // columns)
    figure = Figure(figsize=(SIZE[0], max(SIZE[1], _ROW * rows)), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(decisions) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(decisions) - columns) : len(decisions)]:
        axes.tick_params(labelbottom=True)  # the lowest of its column, though there may be a row below
    colors = operation_colors(operation for row in decisions.values() for operation in row)
    for axes, decision in zip(grid.flat, decisions, strict=False):
        _draw_decision(axes, run, decision, colors)
    figure.supxlabel(_epoch_label([run]), fontsize="medium")
    figure.supylabel("probability", fontsize="medium")
    legend(figure, *grid.flat[: len(decisions)], above=True)  # the name of the axis is below
    return Drawing(
        f"probabilities-{run.strategy}",
        f"What {run.strategy} makes of every decision",
        f"Probability of every operation at every decision in the run with seed {run.seed}.",
        figure,
    )


def _draw_decision(axes: "Axes", run: RunRecords, decision: str, colors: Mapping[str, str]) -> None:
    epochs = [record.epoch for record in run.records]
    for operation in run.records[0].probabilities[decision]:
        shares = [record.probabilities[decision][operation] for record in run.records]
        axes.plot(epochs, shares, color=colors[operation], lw=1.6, label=literal(operation), clip_on=False)
    axes.set_title(literal(decision), fontsize=9)
    axes.set_ylim(0, 1)
    finish(axes, "")


def _epoch_label(runs: Sequence[RunRecords]) -> str:
    warmed_up = all(run.records[0].epoch > 0 for run in runs)
    return "epoch, warm-up included" if warmed_up else "epoch"


def _points(runs: Sequence[RunRecords], measure: Callable[[RunRecords, Record], float | None]) -> list[Point]:
    """Low, median and high over the runs that have measured something at an epoch."""
    points = []
    for epoch, measured in _by_epoch(runs).items():
        values = [value for run, record in measured if (value := measure(run, record)) is not None]
        seconds = [run.seconds[epoch] for run, _ in measured if epoch in run.seconds]
        if values:
            time = statistics.median(seconds) if seconds else math.nan
            points.append(Point(epoch, time, min(values), statistics.median(values), max(values)))
    return points


def _by_epoch(runs: Sequence[RunRecords]) -> dict[float, list[tuple[RunRecords, Record]]]:
    moments: dict[float, list[tuple[RunRecords, Record]]] = {}
    for run in runs:
        for record in run.records:
            moments.setdefault(record.epoch, []).append((run, record))
    return dict(sorted(moments.items()))


def _accuracy(run: RunRecords, record: Record, table: Accuracies) -> float | None:
    cell = run.answer(run.latest if record is run.records[-1] else record)  # a ranking comes after the last record
    return None if cell is None else table.accuracy(cell)


def _best_accuracy(run: RunRecords, table: Accuracies) -> float:
    any_cell = run.records[0].argmax
    return table.accuracy(any_cell) + table.regret(any_cell)

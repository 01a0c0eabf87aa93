"""What answers are worth against how large they are."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from advnas.reports.contents import Measure
from advnas.reports.drawing import MARKERS, SIZE, Drawing, draw_dot, finish, legend_of
from advnas.reports.judging import judge
from advnas.reports.literal import literal
from advnas.reports.study import Accuracies, RunRecords, StudyRecords

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


class _Answer(NamedTuple):
    run: RunRecords
    parameters: float
    measure: Measure


def draw_sizes(study: StudyRecords, table: Accuracies | None) -> Iterator[Drawing]:
    """One dot per finished run; nothing where all answers are of one size, or none was judged."""
    answers = list(_answers(study, table))
    if len({answer.parameters for answer in answers}) < 2:
        return
    name, good = answers[0].measure.name, answers[0].measure.more_is_better
    yield Drawing(
        "size",
        f"{name.capitalize()} against size",
        "The answer of every search over the number of its parameters, one dot per seed. Further to the left is "
        f"smaller, further {'up' if good else 'down'} is better: what is good for its size is at the "
        f"{'top' if good else 'bottom'} left.",
        _size_figure(study, answers),
    )


def _size_figure(study: StudyRecords, answers: Sequence[_Answer]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    in_millions = max(answer.parameters for answer in answers) >= 1e6
    handles: dict[str, Line2D] = {}
    for run, parameters, measure in answers:
        marker = MARKERS[study.strategies.index(run.strategy) % len(MARKERS)]
        place = (parameters / (1e6 if in_millions else 1e3), measure.value)
        handles.setdefault(run.strategy, draw_dot(axes, run.strategy, run.seed, place, marker))
    axes.set_ylabel(literal(answers[0].measure.name))
    axes.margins(0.08)
    finish(axes, f"parameters [{'millions' if in_millions else 'thousands'}]")
    legend_of(figure, handles)
    return figure


def _answers(study: StudyRecords, table: Accuracies | None) -> Iterator[_Answer]:
    judged = judge(study, table)
    for run in study.runs:
        worth = judged.get(run.strategy, {}).get(run.seed)
        parameters = _parameters(run, table)
        if worth and parameters is not None and math.isfinite(worth[0].value):
            yield _Answer(run, parameters, worth[0])


def _parameters(run: RunRecords, table: Accuracies | None) -> float | None:
    """Those of the answer: as it was retrained, or as the table knows it."""
    if run.evaluation:
        return run.evaluation.parameters
    cell = run.answer(run.latest)
    return None if table is None or cell is None else 1e6 * table.entry(cell).params

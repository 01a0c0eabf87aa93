"""Limits in a report: what answers cost, the front of likelihood against cost, and how a search got inside."""

from collections.abc import Iterator, Sequence

from advnas.records.journal import read_journal
from advnas.reports.contents import Spent
from advnas.reports.curves import look
from advnas.reports.drawing import SIZE, Drawing, legend
from advnas.reports.study import RunRecords, StudyRecords

HEADER = ("answer", "cost", "amount", "limit", "within", "note")


def spent_rows(study: StudyRecords) -> list[tuple[str, ...]]:
    """One row per finalist, that is the answer of a run, and limit; see HEADER."""
    return [
        (run.name, one.name, _told(one.amount, one), _told(one.limit, one), "yes" if one.within else "NO", one.note)
        for run in study.runs
        for one in _spent(run)
    ]


def draw_budget(study: StudyRecords) -> Iterator[Drawing]:
    """Of every limit the front with the answers, and the expected cost over the search."""
    names = list(dict.fromkeys(one.name for run in study.runs for one in _spent(run)))
    for name in names:
        yield _draw_front(study, name)
        traced = [(run, trace) for run in study.runs if run.learns and (trace := _trace(run, name))]
        if traced:
            yield _draw_trace(traced, name)


def _draw_front(study: StudyRecords, name: str) -> Drawing:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    likely, worth = figure.subplots(1, 2)
    for run in study.runs:
        for one in _spent(run):
            if one.name == name:
                _draw_run(run, one, likely, worth)
    for axes in (likely, worth):
        axes.set_xlabel(f"{name.replace('_', '-')} {_unit(study, name)}".strip())
        axes.spines[["top", "right"]].set_visible(False)
    likely.set_ylabel("log-likelihood [nats]")
    worth.set_ylabel(study.measures[0].name)
    legend(figure, worth)
    return Drawing(
        f"front-{name}",
        f"The front of {name.replace('_', '-')}",
        "Left: the most likely architectures for all limits, a line per seed; the dot is the answer. Right: what "
        "the answers are worth after retraining, those of random search among them. The dashed line is the limit.",
        figure,
    )


def _draw_run(run: RunRecords, one: Spent, likely: object, worth: object) -> None:
    from matplotlib.axes import Axes

    assert isinstance(likely, Axes)
    assert isinstance(worth, Axes)
    color = look(run.strategy).color
    for axes in (likely, worth):
        axes.axvline(one.limit, color="#b4101c", ls="--", lw=1, label="limit")
    if one.front:
        costs, values = zip(*one.front, strict=True)
        likely.plot(costs, values, "-", color=color, lw=1.2, marker=".", label=run.name)
        inside = [point for point in one.front if point[0] <= one.limit]
        if inside:
            likely.plot(*inside[-1], "o", color=color, markersize=8, label=f"{run.name}, the answer")
    if run.evaluation is not None:
        value = run.evaluation.measures[0].value
        worth.plot(one.amount, value, "o", color=color, markersize=8, mew=0.8, mec="white", label=run.strategy)


def _draw_trace(traced: Sequence[tuple[RunRecords, list[tuple[float, float]]]], name: str) -> Drawing:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    cost, multiplier = figure.subplots(1, 2)
    for run, trace in traced:
        steps, color = range(1, len(trace) + 1), look(run.strategy).color
        cost.plot(steps, [share for share, _ in trace], color=color, lw=1.2, label=run.name)
        multiplier.plot(steps, [weight for _, weight in trace], color=color, lw=1.2, label=run.name)
    cost.axhline(1, color="#b4101c", ls="--", lw=1)
    cost.set_ylabel("expected cost / limit")
    multiplier.set_ylabel("multiplier")
    for axes in (cost, multiplier):
        axes.set_xlabel("steps of theta")
        axes.spines[["top", "right"]].set_visible(False)
    return Drawing(
        f"budget-{name}",
        f"Expected {name.replace('_', '-')} over the search",
        "Left: the expected cost of an architecture drawn from theta, in units of the limit; below the dashed line "
        "it is within it. Right: the multiplier of the limit. A line per seed.",
        figure,
    )


def _trace(run: RunRecords, name: str) -> list[tuple[float, float]]:
    """The expected cost in units of the limit, and the multiplier, of every step of theta."""
    path = run.folder / "metrics.jsonl"
    steps = read_journal(path) if path.exists() else ()
    lines = (line for line in steps if line.get("phase") == "architecture")  # steps of the weights tell it too
    found = [line["limits"][name] for line in lines if name in line.get("limits", {})]
    return [(one["expected"] / one["limit"], one["multiplier"]) for one in found if "multiplier" in one]


def _spent(run: RunRecords) -> tuple[Spent, ...]:
    return run.evaluation.spent if run.evaluation else ()


def _unit(study: StudyRecords, name: str) -> str:
    units = (one.unit for run in study.runs for one in _spent(run) if one.name == name)
    unit = next(units, "")
    return f"[{unit}]" if unit else ""


def _told(amount: float, one: Spent) -> str:
    return f"{amount:,.6g} {one.unit}".strip()

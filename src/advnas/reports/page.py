"""The report of a study: one HTML page that needs nothing beside it, and its parts as files."""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from advnas.checkpoint import write_atomically
from advnas.reports import cells, figures
from advnas.reports.study import Accuracies, Run, Study, read_study
from advnas.reports.tables import (
    Spread,
    StudyTable,
    run_numbers,
    runs_csv,
    spread,
    study_markdown,
    study_table,
    summary_csv,
)
from advnas.reports.verdict import verdict


class Picture(NamedTuple):
    """A drawing inside the page. source: a data URI, so that drawings cannot get at each other's identifiers."""

    title: str
    caption: str
    source: str


class Measure(NamedTuple):
    """What answers are compared by. unit: as told the first time, brief: later. of: None where it is not known."""

    unit: str
    brief: str
    more_is_better: bool
    of: Callable[[Run], float | None]

    def is_better(self, one: float, other: float) -> bool:
        """Whether the first value is strictly better."""
        return one > other if self.more_is_better else one < other


def _measures(study: Study) -> list[Measure]:
    """What the retrained answers are judged by."""
    found = []
    for place, measure in enumerate(study.measures):
        unit = measure.name if measure.more_is_better else f"{measure.name} (lower is better)"
        value = partial(_measured, place=place)
        found.append(Measure(unit, measure.name, measure.more_is_better, value))
    return found


def _measured(run: Run, place: int) -> float | None:
    return run.evaluation.measures[place].value if run.evaluation else None


def write_report(folder: Path, table: Accuracies | None) -> list[Path]:
    """Write FOLDER/report: index.html, every figure as PNG and SVG, the numbers as CSV and Markdown.

    table: of accuracies; a study that retrains its answers, whose cells are of another space, goes without.
    """
    study = read_study(folder)
    table = None if study.retrains else table
    report = folder / "report"
    report.mkdir(exist_ok=True)
    numbers = study_table(study, table)
    texts = {
        "runs.csv": runs_csv(study, table),
        "summary.csv": summary_csv(study, table),
        "table.md": study_markdown(numbers),
    }
    written = [report / name for name in texts]
    for path in written:
        write_atomically(path, texts[path.name])
    curves, curve_files = _draw(figures.draw_study(study, table), report)
    decisions, decision_files = _draw(figures.draw_probabilities(study), report)
    found, cell_files = _draw_cells(study, table, report)
    page = report / "index.html"
    pictures = {"curves": curves, "decisions": decisions, "cells": found}
    words = {"summary": summary(study, table), "remarks": verdict(study, folder)}
    write_atomically(page, _render(study, words, numbers, pictures))
    return [page, *written, *curve_files, *decision_files, *cell_files]


def summary(study: Study, table: Accuracies | None) -> list[str]:
    """What came out, in sentences: who is best, and whether that is more than random search and chance give."""
    if study.retrains:
        return _compare(study, *_measures(study))
    if table is None:
        return ["No table of accuracies was given: this page shows how the searches went, not how good they are."]
    return _compare(study, Measure("% test accuracy", "%", True, lambda run: _answer_accuracy(run, table)))


def _compare(study: Study, *measures: Measure) -> list[str]:
    """By the first measure in full; by the others only who is best."""
    values = _values(study, measures[0]) if measures else {}
    if not values:
        finished = any(run.finished for run in study.runs)
        return [f"No {'answer was judged' if finished else 'run is finished'} yet, so there is nothing to compare."]
    leaders = (_leader(_values(study, each), each) for each in measures)
    return [*leaders, *_against_random(values, measures[0])]


def _values(study: Study, measure: Measure) -> dict[str, list[float]]:
    """[strategy][seed], of the finished runs; strategies without a value are left out."""
    finished = ((name, [run for run in study.of(name) if run.finished]) for name in study.strategies)
    values = {name: [value for run in runs if (value := measure.of(run)) is not None] for name, runs in finished}
    return {name: own for name, own in values.items() if own}


def _best(known: dict[str, Spread], measure: Measure) -> str:
    return (max if measure.more_is_better else min)(known, key=lambda name: known[name].mean)


def _spreads(values: dict[str, list[float]]) -> dict[str, Spread]:
    return {name: found for name, own in values.items() if (found := spread(own))}


def _leader(values: dict[str, list[float]], measure: Measure) -> str:
    known = _spreads(values)
    best = _best(known, measure)
    return f"{best} has the best mean: {known[best].written(2)} {measure.unit} over {_seeds(values[best])}."


def _against_random(values: dict[str, list[float]], measure: Measure) -> Iterator[str]:
    if "random" not in values:
        yield "Random search was not run, so what the searches add to chance cannot be told."
        return
    known = _spreads(values)
    best, random = _best(known, measure), known["random"]
    others = [name for name in known if name != "random"]
    if best != "random":
        gain, noise = abs(known[best].mean - random.mean), max(known[best].std, random.std)
        ahead = sum(measure.is_better(value, random.mean) for value in values[best])
        verdict = "more than" if gain > noise else "no more than"
        yield (
            f"Random search with its process best reaches {random.written(2)} {measure.brief} over "
            f"{_seeds(values['random'])}: {best} is {gain:.2f} points ahead, {verdict} the spread over seeds "
            f"({noise:.2f}), and {ahead} of its {_seeds(values[best])} lie "
            f"{'above' if measure.more_is_better else 'below'} the mean of random search."
        )
    behind = [name for name in others if not measure.is_better(known[name].mean, random.mean)]
    if others:
        yield f"Not better than random search on average: {', '.join(behind) or 'none'}."
    if min(len(values[best]), len(values["random"])) < 2:
        yield "A single seed tells nothing about the spread."


def _answer_accuracy(run: Run, table: Accuracies) -> float | None:
    cell = run.answer(run.latest)
    return None if cell is None else table.accuracy(cell)


def _seeds(values: Sequence[float]) -> str:
    return f"{len(values)} seed{'' if len(values) == 1 else 's'}"


def _draw(drawings: Iterable[figures.Drawing], report: Path) -> tuple[list[Picture], list[Path]]:
    pictures, paths = [], []
    for drawing in drawings:
        png, svg = figures.save(drawing, report)
        pictures.append(Picture(drawing.title, drawing.caption, _data_uri(svg)))
        paths += [png, svg]
    return pictures, paths


def _draw_cells(study: Study, table: Accuracies | None, report: Path) -> tuple[list[Picture], list[Path]]:
    pictures, paths = [], []
    for run in study.runs:
        cell = run.answer(run.latest)
        if cell is not None and cells.is_cell(cell):
            png, svg = cells.save_cell(cell, report / f"cell-{run.name}")
            edges = ", ".join(f"{decision} {operation}" for decision, operation in cell.items())
            pictures.append(Picture(_cell_title(run, table), edges, _data_uri(svg)))
            paths += [png, svg]
    return pictures, paths


def _cell_title(run: Run, table: Accuracies | None) -> str:
    title = f"{run.strategy}, seed {run.seed}" + ("" if run.finished else " (unfinished)")
    if run.evaluation:
        measure = run.evaluation.measures[0]
        return f"{title}: {measure.name} {measure.value:.2f}"
    accuracy = None if table is None else _answer_accuracy(run, table)
    return title if accuracy is None else f"{title}: {accuracy:.2f} %"


def _data_uri(svg: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.read_bytes()).decode()}"


def _render(study: Study, words: dict[str, Any], numbers: StudyTable, pictures: dict[str, list[Picture]]) -> str:
    from jinja2 import Environment, StrictUndefined  # an optional dependency: the `reports` extra

    # Everything on the page comes from files that somebody may have sent: escape all of it.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("advnas.reports").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        study=study,
        **words,
        numbers=numbers,
        in_paper=any(row.in_paper for row in numbers.rows),
        runs=[(run, run_numbers(run, None)["seconds"]) for run in study.runs],
        answers=[(run, answer) for run in study.runs if (answer := run.answer(run.latest))],
        **pictures,
    )

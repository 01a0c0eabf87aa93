"""The report of a study: one HTML page that needs nothing beside it, and its parts as files."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

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


class Picture(NamedTuple):
    """A drawing inside the page. source: a data URI, so that drawings cannot get at each other's identifiers."""

    title: str
    caption: str
    source: str


def write_report(folder: Path, table: Accuracies | None) -> list[Path]:
    """Write FOLDER/report: index.html, every figure as PNG and SVG, the numbers as CSV and Markdown."""
    study = read_study(folder)
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
    write_atomically(page, _render(study, summary(study, table), numbers, pictures))
    return [page, *written, *curve_files, *decision_files, *cell_files]


def summary(study: Study, table: Accuracies | None) -> list[str]:
    """What came out, in sentences: who is best, and whether that is more than random search and chance give."""
    if table is None:
        return ["No table of accuracies was given: this page shows how the searches went, not how good they are."]
    accuracies = {name: _answer_accuracies(study, name, table) for name in study.strategies}
    known = {name: Spread(*found) for name, values in accuracies.items() if (found := spread(values))}
    if not known:
        return ["No run is finished yet, so there is nothing to compare."]
    best = max(known, key=lambda name: known[name].mean)
    return [
        f"{best} has the best mean: {_percent(known[best])} test accuracy over {_seeds(accuracies[best])}.",
        *_against_random(best, known, accuracies),
    ]


def _against_random(best: str, known: dict[str, Spread], accuracies: dict[str, list[float]]) -> Iterator[str]:
    if "random" not in known:
        yield "Random search was not run, so what the searches add to chance cannot be told."
        return
    random, others = known["random"], [name for name in known if name != "random"]
    if best != "random":
        gain, noise = known[best].mean - random.mean, max(known[best].std, random.std)
        above = sum(value > random.mean for value in accuracies[best])
        verdict = "more than" if gain > noise else "no more than"
        yield (
            f"Random search with its process best reaches {_percent(random)} over {_seeds(accuracies['random'])}: "
            f"{best} is {gain:.2f} points ahead, {verdict} the spread over seeds ({noise:.2f}), and {above} of its "
            f"{_seeds(accuracies[best])} lie above the mean of random search."
        )
    behind = [name for name in others if known[name].mean <= random.mean]
    if others:
        yield f"Not better than random search on average: {', '.join(behind) or 'none'}."
    if min(len(accuracies[best]), len(accuracies["random"])) < 2:
        yield "A single seed tells nothing about the spread."


def _answer_accuracies(study: Study, strategy: str, table: Accuracies) -> list[float]:
    finished = [run for run in study.of(strategy) if run.finished]
    answers = (run.answer(run.latest) for run in finished)
    return [table.accuracy(cell) for cell in answers if cell is not None]


def _percent(found: Spread) -> str:
    return f"{found.written(2)} %"


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
        if cell is not None:
            png, svg = cells.save_cell(cell, report / f"cell-{run.name}")
            edges = ", ".join(f"{decision} {operation}" for decision, operation in cell.items())
            pictures.append(Picture(_cell_title(run, table), edges, _data_uri(svg)))
            paths += [png, svg]
    return pictures, paths


def _cell_title(run: Run, table: Accuracies | None) -> str:
    title = f"{run.strategy}, seed {run.seed}" + ("" if run.finished else " (unfinished)")
    cell = run.answer(run.latest)
    return title if table is None or cell is None else f"{title}: {table.accuracy(cell):.2f} %"


def _data_uri(svg: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.read_bytes()).decode()}"


def _render(study: Study, sentences: list[str], numbers: StudyTable, pictures: dict[str, list[Picture]]) -> str:
    from jinja2 import Environment, StrictUndefined  # an optional dependency: the `reports` extra

    # Everything on the page comes from files that somebody may have sent: escape all of it.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("advnas.reports").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        study=study,
        summary=sentences,
        numbers=numbers,
        in_paper=any(row.in_paper for row in numbers.rows),
        runs=[(run, run_numbers(run, None)["seconds"]) for run in study.runs],
        **pictures,
    )

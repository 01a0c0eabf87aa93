"""The report of a study: one HTML page that needs nothing beside it, and its parts as files."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from advnas.paper import published
from advnas.records.files import write_atomically
from advnas.reports import cells, figures
from advnas.reports.budget import HEADER as SPENT_HEADER
from advnas.reports.budget import draw_budget, spent_rows
from advnas.reports.contents import Measure
from advnas.reports.credit import HEADER as CREDIT_HEADER
from advnas.reports.credit import credit_rows
from advnas.reports.directions import HEADER as DIRECTIONS_HEADER
from advnas.reports.directions import all_directions, direction_tables, directions_csv
from advnas.reports.drawing import Drawing, save
from advnas.reports.glossary import terms_in
from advnas.reports.hover import inline
from advnas.reports.judging import Judged, best_run_or_none, judge, named
from advnas.reports.pairs import ENOUGH, all_pairings, badness, compare
from advnas.reports.study import PLAIN_RUN, Accuracies, RunRecords, StudyRecords, read_study
from advnas.reports.tables import (
    PAIRS_HEADER,
    StudyTable,
    markdown,
    pair_rows,
    pairs_csv,
    run_numbers,
    runs_csv,
    spread,
    study_markdown,
    study_table,
    summary_csv,
)
from advnas.reports.verdict import against_baselines, conduct


class Picture(NamedTuple):
    """A drawing inside the page. svg: as it was saved."""

    title: str
    caption: str
    svg: str

    @property
    def source(self) -> str:
        """The drawing as an image, which cannot tell its values."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"

    def plot(self, name: str) -> str:
        """The drawing as a part of the page, which tells its values. name: begins its identifiers."""
        return inline(self.svg, name, f"{self.title}. {self.caption}")


def write_report(folder: Path, table: Accuracies | None) -> list[Path]:
    """Write FOLDER/report: index.html, every figure as PNG and SVG, the numbers as CSV and Markdown.

    table: of accuracies; a study that retrains its answers, whose cells are of another space, goes without.
    """
    study = read_study(folder)
    table = None if study.retrains else table
    report = folder / "report"
    report.mkdir(exist_ok=True)
    numbers = study_table(study, table)
    pairings = all_pairings(study, judge(study, table))
    known = all_directions(study)
    texts = {
        "runs.csv": runs_csv(study, table),
        "summary.csv": summary_csv(study, table),
        "table.md": study_markdown(numbers),
        "pairs.csv": pairs_csv(pairings),
        "pairs.md": markdown(PAIRS_HEADER, pair_rows(pairings)),
        "directions.csv": directions_csv(study, known),
    }
    written = [report / name for name in texts]
    for path in written:
        write_atomically(path, texts[path.name])
    curves, curve_files = _draw([*figures.draw_study(study, table), *draw_budget(study)], report)
    decisions, decision_files = _draw(figures.draw_probabilities(study), report)
    found, cell_files = _draw_cells(study, table, report)
    page = report / "index.html"
    pictures = {"curves": curves, "decisions": decisions, "cells": found}
    words = {
        "summary": summary(study, table),
        "product": product(study, folder),
        "remarks": against_baselines(study, table),
        "conduct": conduct(study, known),
        "directions": direction_tables(study, known),
        "directions_header": DIRECTIONS_HEADER,
        "notes": published.NOTES.get(study.name, {}),
        "answers_by": answers_in_words(study),
        "pairs": pair_rows(pairings),
        "pairs_header": PAIRS_HEADER,
        "pairs_measure": pairings[0].measure if pairings else "",
        "pairs_enough": ENOUGH,
        "credit": credit_rows(study),
        "credit_header": CREDIT_HEADER,
        "spent": spent_rows(study),
        "spent_header": SPENT_HEADER,
    }
    write_atomically(page, _render(study, words, numbers, pictures))
    return [page, *written, *curve_files, *decision_files, *cell_files]


class Product(NamedTuple):
    """What a search was for: its answer, of which run, and the commands that make use of it."""

    run: RunRecords
    operations: Mapping[str, str]
    commands: tuple[str, ...]


def product(study: StudyRecords, folder: Path) -> Product | None:
    """The answer that `advnas export` takes; None where a study compares strategies, or nothing is found yet."""
    if study.name not in (PLAIN_RUN, "search") or not any(run.finished for run in study.runs):
        return None
    plain = study.name == PLAIN_RUN
    run = study.runs[0] if plain else best_run_or_none(study)
    if run is None:
        return None
    operations = run.answer(run.latest)
    where = f"{quote(str(folder))}{' --entry MODULE:FUNCTION' if plain else named(study, run)}"
    export = () if run.evaluation and run.evaluation.no_file else (f"advnas export {where}",)
    commands = (*export, f"advnas retrain {where}{' --epochs N' if plain else ''}")
    return None if operations is None else Product(run, operations, commands)


def answers_in_words(study: StudyRecords) -> str:
    """Which architecture is whose answer."""
    kinds = {run.strategy: run.answers_by for run in study.runs if run.answers_by != "argmax"}
    others = [f"for {name} the {_KINDS[kind]}" for name, kind in kinds.items()]
    return ", ".join(["the argmax", *others])


_KINDS = {
    "process best": "process best",
    "ranked": "best of many draws by the shared weights",
    "refined": "argmax refined by the shared weights",
}


def summary(study: StudyRecords, table: Accuracies | None) -> list[str]:
    """Who is best, by every measure, in sentences; the verdict tells whether that is more than chance gives."""
    if table is None and not study.retrains:
        return ["No table of accuracies was given: this page shows how the searches went, not how good they are."]
    judged = judge(study, table)
    if not judged:
        finished = any(run.finished for run in study.runs)
        if study.name == PLAIN_RUN and finished:
            return [
                f"{study.strategies[0]} has searched once. Whether its answer beats chance was not tested here."
            ]
        return [f"No {'answer was judged' if finished else 'run is finished'} yet, so there is nothing to compare."]
    measures = next(iter(next(iter(judged.values())).values()))
    told = []
    for place, measure in enumerate(measures):
        values = {name: [worth[place].value for worth in own.values()] for name, own in judged.items()}
        told.append(_leader(values, measure) + lead(judged, place) + _diverged(values, measure))
    return told


def lead(judged: Judged, place: int = 0) -> str:
    """Whether the first by a measure is ahead of the second by more than chance gives. place: of the measure."""
    judged = {name: {seed: worth[place:] for seed, worth in own.items()} for name, own in judged.items()}
    ranked = sorted(judged, key=lambda name: badness(judged[name]))
    pairing = compare(judged, ranked[0], ranked[1]) if ranked[1:] else None
    if pairing is None or math.isnan(pairing.difference.mean):  # then the leaders' sentences say why
        return ""
    if pairing.difference.significant:
        return f" It is significantly ahead of {ranked[1]}."
    if not pairing.difference.enough:
        return f" Whether it is ahead of {ranked[1]} is open: that takes {ENOUGH} seeds."
    return f" It is a tie with {ranked[1]}: the difference is not significant."


def _leader(values: dict[str, list[float]], measure: Measure) -> str:
    found = {name: spread(own) for name, own in values.items()}
    known = {name: one for name, one in found.items() if one is not None and not math.isnan(one.mean)}
    if not known:
        return f"No strategy has the best mean {measure.name}."
    best = (max if measure.more_is_better else min)(known, key=lambda name: known[name].mean)
    direction = "" if measure.more_is_better else " (lower is better)"
    told = known[best].written(measure.digits)
    return f"{best} has the best mean {measure.name}{direction}: {told} over {_seeds(values[best])}."


def _diverged(values: Mapping[str, Sequence[float]], measure: Measure) -> str:
    """Which strategies have no mean, since the result of a seed is not a number."""
    counts = {name: sum(map(math.isnan, own)) for name, own in values.items()}
    return "".join(
        f" The {measure.name} of {name} is not a number in {count} of {_seeds(values[name])}."
        for name, count in counts.items()
        if count
    )


def _seeds(values: Sequence[float]) -> str:
    return f"{len(values)} seed{'' if len(values) == 1 else 's'}"


def _draw(drawings: Iterable[Drawing], report: Path) -> tuple[list[Picture], list[Path]]:
    pictures, paths = [], []
    for drawing in drawings:
        png, svg = save(drawing, report)
        pictures.append(Picture(drawing.title, drawing.caption, svg.read_text(encoding="utf-8")))
        paths += [png, svg]
    return pictures, paths


def _draw_cells(study: StudyRecords, table: Accuracies | None, report: Path) -> tuple[list[Picture], list[Path]]:
    pictures, paths = [], []
    for run in study.runs:
        cell = run.answer(run.latest)
        if cell is not None and cells.is_cell(cell):
            png, svg = cells.save_cell(cell, report / f"cell-{run.name}")
            edges = ", ".join(f"{decision} {operation}" for decision, operation in cell.items())
            pictures.append(Picture(_cell_title(run, table), edges, svg.read_text(encoding="utf-8")))
            paths += [png, svg]
    return pictures, paths


def _cell_title(run: RunRecords, table: Accuracies | None) -> str:
    title = f"{run.strategy}, seed {run.seed}" + ("" if run.finished else " (unfinished)")
    if run.evaluation:
        measure = run.evaluation.measures[0]
        return f"{title}: {measure.name} {measure.value:.{measure.digits}f}"
    cell = run.answer(run.latest)
    return title if table is None or cell is None else f"{title}: {table.accuracy(cell):.2f} %"


def _render(
    study: StudyRecords, words: dict[str, Any], numbers: StudyTable, pictures: dict[str, list[Picture]]
) -> str:
    from jinja2 import Environment, StrictUndefined  # an optional dependency: the `reports` extra

    # Everything on the page comes from files that somebody may have sent: escape all of it.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("advnas.reports").joinpath("page.html.j2").read_text(encoding="utf-8")
    render = partial(
        environment.from_string(source).render,
        study=study,
        **words,
        numbers=numbers,
        in_paper=any(row.in_paper for row in numbers.rows),
        runs=[(run, run_numbers(run, None)["seconds"]) for run in study.runs],
        answers=[(run, answer) for run in study.runs if (answer := run.answer(run.latest))],
        **pictures,
    )
    return render(glossary=terms_in(render(glossary={})))

"""Tables: for the terminal, for a spreadsheet and for the documentation, from the same rows."""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from advnas import strategies
from advnas.paper import published
from advnas.reports.contents import process_best
from advnas.reports.pairs import Difference, Pairing
from advnas.reports.study import Accuracies, RunRecords, StudyRecords

Curves = Mapping[str, Mapping[str, Sequence[Any]]]

_TOY_ITERATIONS = (100, 300, 600)  # at which the toy study is compared, where it is as long

Numbers = Mapping[str, float | None]


class Spread(NamedTuple):
    """A mean over seeds and the sample standard deviation (n - 1); None of a single value."""

    mean: float
    std: float | None

    def written(self, digits: int) -> str:
        """Mean ± std; the mean alone where one value says nothing about its spread."""
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


class Column(NamedTuple):
    """One quantity of a study's table. key: its name in the spreadsheets. printed: whether the paper has it."""

    key: str
    title: str
    unit: str
    digits: int
    printed: bool = False

    @property
    def heading(self) -> str:
        """Title and unit in one line."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title


class Value(NamedTuple):
    """What came out here and, where the paper has it too, there. each: the value of every seed, a line each."""

    ours: str
    paper: str
    each: str = ""


class StudyRow(NamedTuple):
    """A strategy, how many of its runs are finished, and one value per column over those.

    answer: which of a search's cells was retrained; empty where none was.
    """

    strategy: str
    answer: str
    runs: str
    values: tuple[Value, ...]

    @property
    def in_paper(self) -> bool:
        """Whether the paper has a number for any of these columns."""
        return any(value.paper for value in self.values)


@dataclass(frozen=True)
class StudyTable:
    """columns: only those that at least one finished run has a number for. note: what must be read along."""

    columns: tuple[Column, ...]
    rows: tuple[StudyRow, ...]
    note: str = ""

    @property
    def tells_answers(self) -> bool:
        """Whether any row says which cell was retrained."""
        return any(row.answer for row in self.rows)


_COSTS = (
    Column("seconds", "search time", "s", 1),
    Column("passes", "forward passes for theta and the answer", "", 0),
    Column("saved_mib", "saved activations", "MiB", 1),
)
COLUMNS = (
    Column("argmax_accuracy", "accuracy of the argmax", "%", 2, printed=True),
    Column("argmax_params", "its parameters", "M", 2, printed=True),
    Column("process_best_accuracy", "accuracy of the process best", "%", 2, printed=True),
    Column("process_best_params", "its parameters", "M", 2, printed=True),
    Column("answer_accuracy", "accuracy of the answer", "%", 2),
    Column("regret", "regret of the answer", "points", 2),
    Column("percentile", "cells worse than the answer", "%", 1),
    *_COSTS,
)


def toy_header(curves: Curves) -> tuple[str, ...]:
    """The titles of the columns of `toy_rows`."""
    return ("strategy", "runs", *(f"at {iteration}" for iteration in _reached(curves)), "end", "found")


def _reached(curves: Curves) -> list[int]:
    return [one for one in _TOY_ITERATIONS if any(one in curve["iterations"] for curve in curves.values())]


def toy_rows(curves: Curves) -> list[tuple[str, ...]]:
    """One row per strategy: median test loss x 100 on the way and at the end, and in how many trials it is 0."""
    reached = _reached(curves)
    return [
        (
            name,
            propagation(name),
            *(_median_at(curve, iteration) for iteration in reached),
            f"{statistics.median(curve['final']):.3f}",
            f"{sum(loss == 0 for loss in curve['final'])} of {len(curve['final'])}",
        )
        for name, curve in curves.items()
    ]


def propagation(name: str) -> str:
    """What a strategy executes per decision: "1", "2" or "all", for weights and theta where they differ."""
    kind = strategies.strategy_type(name)
    counts = [
        "all" if count is None else str(count) for count in (kind.weight_operations, kind.architecture_operations)
    ]
    return counts[0] if counts[0] == counts[1] else " / ".join(counts)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the documentation."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def toy_csv(curves: Curves) -> str:
    """Long form: strategy, iteration, median, q25, q75."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["strategy", "iteration", "median", "q25", "q75"])
    for name, curve in curves.items():
        columns = (curve[key] for key in ("iterations", "median", "q25", "q75"))
        writer.writerows([name, *row] for row in zip(*columns, strict=True))
    return text.getvalue()


def paper_numbers(study: StudyRecords, strategy: str) -> Mapping[str, Spread]:
    """What the paper reports for a strategy in the same space, by column; empty if it does not."""
    printed = published.TABLES.get((study.name, study.with_zero), {}).get(strategy, {})
    return {column: Spread(*pair) for column, pair in printed.items()}


def study_columns(study: StudyRecords) -> tuple[Column, ...]:
    """All that could be known of the runs of a study."""
    if not study.retrains:
        return COLUMNS
    printed = any(name == study.name for name, _ in published.TABLES)
    judged = (Column(one.key, one.name, "", one.digits, printed) for one in study.measures)
    return (*judged, Column("params", "parameters", "M", 2 if printed else 4, printed), *_COSTS)


def run_numbers(run: RunRecords, table: Accuracies | None) -> Numbers:
    """The quantities of all columns for one run; of an unfinished one, as it stands. None: not known."""
    numbers: dict[str, float | None] = dict.fromkeys([*(column.key for column in COLUMNS), "params"])
    if table is not None:
        found = run.latest
        # Theta of a baseline never moves, so its argmax is whatever operation comes first.
        cells = {
            "argmax": found.argmax if run.learns else None,
            "process_best": process_best(found),
        }
        for name, cell in cells.items():
            if cell is not None:
                numbers[f"{name}_accuracy"] = table.accuracy(cell)
                numbers[f"{name}_params"] = table.entry(cell).params
        answer = run.answer(found)
        if answer is not None:
            numbers["answer_accuracy"] = table.accuracy(answer)
            numbers |= {"regret": table.regret(answer), "percentile": table.percentile(answer)}
    if run.evaluation:
        numbers |= {measure.key: measure.value for measure in run.evaluation.measures}
        numbers["params"] = run.evaluation.parameters / 1e6
    measured = run.result.seconds if run.result else None
    numbers["seconds"] = run.seconds.get(run.records[-1].epoch) if measured is None else measured
    numbers["passes"] = run.result.passes if run.result else None
    if run.result and run.result.saved_bytes is not None:
        numbers["saved_mib"] = run.result.saved_bytes / 2**20
    return numbers


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and standard deviation of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], None)
    # A model that has diverged has an infinite perplexity, which `statistics` cannot take.
    std = statistics.stdev(known) if all(map(math.isfinite, known)) else math.nan
    return Spread(statistics.fmean(known), std)


def strategy_spreads(study: StudyRecords, table: Accuracies | None) -> dict[str, dict[str, Spread]]:
    """[strategy][column]: over the finished runs; columns without a number are left out."""
    spreads: dict[str, dict[str, Spread]] = {}
    for strategy in study.strategies:
        numbers = [run_numbers(run, table) for run in study.of(strategy) if run.finished]
        columns = {column.key: spread(row.get(column.key) for row in numbers) for column in study_columns(study)}
        spreads[strategy] = {key: found for key, found in columns.items() if found}
    return spreads


def study_table(study: StudyRecords, table: Accuracies | None) -> StudyTable:
    """Mean ± std over the finished runs of every strategy, next to the paper's numbers."""
    spreads = strategy_spreads(study, table)
    columns = tuple(
        column for column in study_columns(study) if any(column.key in known for known in spreads.values())
    )
    rows = tuple(
        StudyRow(
            strategy,
            _retrained(study.of(strategy)),
            _finished(study.of(strategy)),
            tuple(
                Value(
                    _written(known, column),
                    _written(paper_numbers(study, strategy), column),
                    _each(study.of(strategy), column, table),
                )
                for column in columns
            ),
        )
        for strategy, known in spreads.items()
    )
    note = published.NOTES.get(study.name, {}).get("parameters", "")
    return StudyTable(columns, rows, note if any(row.in_paper for row in rows) else "")


def study_markdown(table: StudyTable) -> str:
    """The table for the documentation: a column of the paper's numbers beside each that it has."""
    in_paper = [any(row.values[place].paper for row in table.rows) for place in range(len(table.columns))]
    header = ["strategy", *["answer"] * table.tells_answers, "runs"]
    rows = [[row.strategy, *[row.answer or "-"] * table.tells_answers, row.runs] for row in table.rows]
    for place, column in enumerate(table.columns):
        header += [column.heading] + ["paper"] * in_paper[place]
        for line, row in zip(rows, table.rows, strict=True):
            ours, paper, _ = row.values[place]
            line += [ours or "-"] + [paper or "-"] * in_paper[place]
    return markdown(header, rows) + (f"\n{table.note}\n" if table.note else "")


PAIRS_HEADER = ("strategy", "against", "seeds", "mean difference", "95 % interval", "Wilcoxon p", "significant")


def pair_rows(pairings: Sequence[Pairing]) -> list[tuple[str, ...]]:
    """One row per comparison; a positive difference is in favour of the strategy."""
    return [(one.strategy, one.other, *_told(one.difference, one.digits)) for one in pairings]


def _told(found: Difference, digits: int) -> tuple[str, ...]:
    known = math.isfinite(found.low)
    interval = f"{found.low:+.{digits}f} to {found.high:+.{digits}f}" if known else "-"
    significant = ("yes" if found.significant else "no") if found.enough else "too few seeds"
    p = f"{found.p:.2g}" if known else "-"
    return str(found.pairs), f"{found.mean:+.{digits}f}", interval, p, significant


def pairs_csv(pairings: Sequence[Pairing]) -> str:
    """One line per comparison, numbers in full precision. significant: 1 or 0."""
    lines = [[*one[:-1], *one.difference, int(one.difference.significant)] for one in pairings]
    return _csv([*Pairing._fields[:-1], *Difference._fields, "significant"], lines)


def runs_csv(study: StudyRecords, table: Accuracies | None) -> str:
    """One line per run, numbers in full precision, empty where unknown. finished: 1 or 0."""
    keys = [column.key for column in study_columns(study)]
    lines: list[list[Any]] = []
    for run in study.runs:
        numbers = run_numbers(run, table)
        answer = [_retrained([run])] * study.retrains
        lines.append([run.strategy, run.seed, int(run.finished), *answer, *map(numbers.get, keys)])
    return _csv(["strategy", "seed", "finished", *["answer"] * study.retrains, *keys], lines)


def summary_csv(study: StudyRecords, table: Accuracies | None) -> str:
    """One line per strategy: mean and std over its finished runs, then the paper's where it has them."""
    columns = study_columns(study)
    keys = [column.key for column in columns] + [f"paper_{column.key}" for column in columns if column.printed]
    lines: list[list[Any]] = []
    for strategy, known in strategy_spreads(study, table).items():
        paper = {f"paper_{key}": found for key, found in paper_numbers(study, strategy).items()}
        numbers = (number for key in keys for number in (known | paper).get(key, (None, None)))
        runs = study.of(strategy)
        answer = [_retrained(runs)] * study.retrains
        lines.append([strategy, len(runs), sum(run.finished for run in runs), *answer, *numbers])
    parts = (f"{key}_{part}" for key in keys for part in Spread._fields)
    return _csv(["strategy", "runs", "finished", *["answer"] * study.retrains, *parts], lines)


def _finished(runs: Sequence[RunRecords]) -> str:
    finished = sum(run.finished for run in runs)
    return str(finished) if finished == len(runs) else f"{finished} of {len(runs)}"


def _retrained(runs: Sequence[RunRecords]) -> str:
    """Which answers of these runs were retrained. A search that drew nothing has no process best to give."""
    return " / ".join(sorted({run.evaluation.by for run in runs if run.evaluation}))


def _written(known: Mapping[str, Spread], column: Column) -> str:
    return known[column.key].written(column.digits) if column.key in known else ""


def _each(runs: Sequence[RunRecords], column: Column, table: Accuracies | None) -> str:
    """What the finished runs have in a column, where a mean hides it."""
    known = {run.seed: run_numbers(run, table).get(column.key) for run in runs if run.finished}
    lines = [f"seed {seed}: {value:.{column.digits}f}" for seed, value in known.items() if value is not None]
    return "\n".join(lines) if len(lines) > 1 else ""


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    return text.getvalue()


def _median_at(curve: Mapping[str, Sequence[Any]], iteration: int) -> str:
    if iteration not in curve["iterations"]:
        return "-"
    return f"{curve['median'][curve['iterations'].index(iteration)]:.3f}"

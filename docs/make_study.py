"""Write the data files of a result page from the folder of a study.

    .venv/bin/python docs/make_study.py FOLDER NAME

NAME.json has a row per strategy, with one number per seed; NAME_pairs.json the comparisons by seed; the folder NAME
the figures of the report. All are written into docs/results, and `make docs` puts the tables into the pages.
"""

import argparse
import json
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from advnas import tables
from advnas.records.files import write_atomically
from advnas.reports.curves import look
from advnas.reports.judging import judge
from advnas.reports.page import write_report
from advnas.reports.pairs import all_pairings
from advnas.reports.study import Accuracies, RunRecords, StudyRecords, read_study
from advnas.reports.tables import PAIRS_HEADER, Column, pair_rows, run_numbers, study_columns
from advnas.tasks.data_folder import data_folder

RESULTS = Path(__file__).parent / "results"
NOT_SHOWN = ("argmax_params", "process_best_params", "regret", "seconds", "saved_mib")  # but kept in the rows
FIGURES = ("accuracy", "accuracy-seconds", "entropy", "loss", "retrained")  # the first part of their names


def main() -> None:
    """Read the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data-folder", type=Path)
    options = parser.parse_args()
    study = read_study(options.folder)
    table = accuracies(study, options.data_folder)
    results = results_table(study, table)
    write_table(options.name, results)
    write_table(f"{options.name}_pairs", pairs_table(study, table))
    for path in write_report(options.folder, table):
        if path.suffix == ".png" and path.stem.startswith(FIGURES):
            (RESULTS / options.name).mkdir(exist_ok=True)
            shutil.copy(path, RESULTS / options.name / path.name)
    if table is not None:
        draw_costs(options.name, results["rows"])


def accuracies(study: StudyRecords, folder: Path | None) -> Accuracies | None:
    """Load the table that knows what the answers are worth, if there is one."""
    if study.table is None:
        return None
    benchmark = tables.get(study.table)
    found: Accuracies = benchmark.load(benchmark.find(data_folder(folder)))
    return found


def results_table(study: StudyRecords, table: Accuracies | None) -> dict[str, Any]:
    """A row per strategy: what every finished run has shown, in the order of the seeds."""
    rows: list[dict[str, Any]] = [
        {"strategy": name, "answer": study.of(name)[0].answers_by}
        | {column.key: numbers(study.of(name), column, table) for column in study_columns(study)}
        for name in study.strategies
    ]
    known = [
        column
        for column in study_columns(study)
        if column.key not in NOT_SHOWN and any(row[column.key] for row in rows)
    ]
    shown = [{"title": one.heading, "field": one.key, "format": f",.{one.digits}f"} for one in known]
    columns = [{"title": name, "field": name} for name in ("strategy", "answer")]
    return {"title": study.title, "source": source(study), "columns": columns + shown, "rows": rows}


def numbers(runs: Iterable[RunRecords], column: Column, table: Accuracies | None) -> list[float] | None:
    """One number per finished run; None where nobody knows them."""
    found = [run_numbers(run, table).get(column.key) for run in runs if run.finished]
    known = [value for value in found if value is not None]
    return known or None


def pairs_table(study: StudyRecords, table: Accuracies | None) -> dict[str, Any]:
    """Every strategy against the baselines and the best other one, seed by seed."""
    rows = pair_rows(all_pairings(study, judge(study, table)))
    return {
        "title": f"{study.title}: pairs by seed",
        "source": source(study),
        "columns": [{"title": name, "field": name} for name in PAIRS_HEADER],
        "rows": [dict(zip(PAIRS_HEADER, row, strict=True)) for row in rows],
    }


def source(study: StudyRecords) -> dict[str, str]:
    """Where the numbers come from, as the runs say it."""
    finished = [run.result.provenance for run in study.runs if run.result is not None]
    seeds = sorted({run.seed for run in study.runs if run.finished})
    commits = unique(origin["commit"] for origin in finished)
    return {
        "command": ", ".join(unique(re.sub(r"--folder \S+", "--folder F", one["command"]) for one in finished)),
        "seeds": f"{seeds[0]} to {seeds[-1]}",
        "commit" if len(commits) == 1 else "commits": ", ".join(commits),
        "machine": "; ".join(unique(f"{origin['machine']}, {origin['versions']}" for origin in finished)),
    }


def draw_costs(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw what answers are worth over what finding them cost: the mean of every strategy, and its deviation."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    equal = Counter[float]()
    for row in rows:
        values, passes = row["answer_accuracy"], row["passes"][0]
        spread = statistics.stdev(values) if values[1:] else 0.0
        beside = passes * 1.05 ** equal[passes]  # so that strategies of one price do not hide each other
        equal[passes] += 1
        color = look(row["strategy"]).color
        axes.errorbar(
            beside, statistics.fmean(values), spread, fmt="o", color=color, capsize=3, label=row["strategy"]
        )
    axes.set_xscale("log")
    axes.set_xlabel("forward passes of one minibatch, for theta and the answer")
    axes.set_ylabel("test accuracy of the answer [%]")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([1000, 2000, 5000, 10_000])
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(RESULTS / name / "cost.png", dpi=120)


def unique(texts: Iterable[str]) -> Sequence[str]:
    """The different ones, in the order in which they come."""
    return list(dict.fromkeys(texts))


def write_table(name: str, content: dict[str, Any]) -> None:
    """Write one data file."""
    write_atomically(RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

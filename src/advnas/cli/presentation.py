"""What `advnas search` shows: the plan before it, the table, the verdict and the answer after it."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from advnas.cli.console import console
from advnas.cli.progress import duration

if TYPE_CHECKING:
    from rich.console import Console

    from advnas.reports.study import RunRecords, StudyRecords
    from advnas.search.verdict import Remark
    from advnas.studies.study import Study


_COSTS = ("seconds", "passes", "saved_mib")  # columns that the report has and the terminal has no room for


def show_plan(study: "Study", strategy: str, seeds: Sequence[int], at_once: int, *, as_json: bool) -> None:
    """Measure a few minibatches, and show memory and time."""
    from rich.table import Table

    from advnas import strategies
    from advnas.cli.limits import limit_rows, limits_told

    search, data = study.begin(strategy, seeds[0])
    plan = search.plan(data.losses(search)[0])
    passes = 2 * study.length.turns - study.length.warmup_turns
    runs = (1 + len(strategies.baselines())) * len(seeds)
    total = runs * passes * plan.pass_seconds / at_once
    table = Table("what", "how much", title="Before anything runs")
    for name, value in (plan.rows() | limit_rows(search)).items():
        table.add_row(name, value)
    table.add_row("turns of a search", str(study.length))
    table.add_row("all searches", f"about {duration(total)} without retraining, with {at_once} at a time")
    if as_json:
        peaks = {name: getattr(plan, name) for name in ("sparse_peak", "stored_peak", "dense_peak")}
        print(json.dumps(asdict(plan) | peaks | {"search_seconds": total} | limits_told(search), indent=1))
    console(stderr=as_json).print(table)


def present_study(folder: Path, strategy: str, *, as_json: bool) -> None:
    """Show what the runs in a folder have found, write its report, and say how to get the answer out."""
    from advnas.reports.judging import best_run, named
    from advnas.reports.study import read_study
    from advnas.reports.verdict import verdict

    study = read_study(folder)
    remarks, best = verdict(study), best_run(study)
    assert best.evaluation is not None
    terminal = console(stderr=as_json)
    _print_table(terminal, study)
    _print_traffic(terminal, folder, strategy)
    _print_remarks(terminal, remarks)
    terminal.print(f"\nThe answer ({best.name}, the one that validates best):")
    for decision, operation in best.evaluation.architecture.items():
        terminal.print(f"  {decision}: {operation}")
    page = _write_report(folder, terminal)
    _print_more_seeds(terminal, folder, study)
    refused = best.evaluation.no_file
    terminal.print(
        f"\nGet it out:  {refused or f'advnas export {quote(str(folder))}{named(study, best)} --to pt2'}"
    )
    if as_json:
        print(json.dumps(_summary(folder, study, best, remarks, page), indent=1))


def _print_table(terminal: "Console", study: "StudyRecords") -> None:
    """What the retrained answers are worth: mean ± sample standard deviation over the seeds."""
    from rich.table import Table

    from advnas.reports.tables import study_table

    numbers = study_table(study, None)
    shown = [place for place, column in enumerate(numbers.columns) if column.key not in _COSTS]
    table = Table("strategy", "seeds", *(numbers.columns[place].heading for place in shown))
    for row in numbers.rows:
        values = (row.values[place].ours or "-" for place in shown)
        table.add_row(row.strategy, row.runs, *values)
    terminal.print(table)


def _print_remarks(terminal: "Console", remarks: "Sequence[Remark]") -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for remark in remarks:
        mark = {True: Text("+", "green"), False: Text("!", "red"), None: Text("-", "yellow")}[remark.good]
        grid.add_row(mark, Text(remark.text))
    terminal.print(grid)


def _print_more_seeds(terminal: "Console", folder: Path, study: "StudyRecords") -> None:
    """How to get enough seeds to claim something, where there are too few."""
    from advnas.reports.pairs import ENOUGH

    if len({run.seed for run in study.runs if run.finished}) < ENOUGH:
        terminal.print(f"\nMore seeds:  advnas search --resume --folder {quote(str(folder))} --seeds {ENOUGH}")


def _print_traffic(terminal: "Console", folder: Path, strategy: str) -> None:
    """What several processes told each other per step, as a mean over the strategy's runs."""
    from advnas.studies.run import read_results

    results = [result for result in read_results(folder) if result["strategy"] == strategy]
    traffic = [result["traffic"] for result in results if "traffic" in result]
    if not traffic:
        return
    terminal.print(f"Bytes that each of {traffic[0]['processes']} processes handed over per step:")
    for purpose in traffic[0]["bytes"]:
        mean = statistics.fmean(each["bytes"].get(purpose, 0) for each in traffic)
        terminal.print(f"  {mean:>12,.0f}  {purpose}")
    terminal.print(f"  {traffic[0]['network']:>12,}  for comparison: all weights of the network")


def _write_report(folder: Path, terminal: "Console") -> Path | None:
    try:
        from advnas.reports.page import write_report

        page = write_report(folder, None)[0]
    except ImportError:
        terminal.print("\nNo report: it needs matplotlib and jinja2. Write pip install 'advnas[reports]'.")
        return None
    terminal.print(f"\nReport:      {page}")
    return page


def _summary(
    folder: Path, study: "StudyRecords", best: "RunRecords", remarks: "Sequence[Remark]", page: Path | None
) -> dict[str, Any]:
    from advnas.reports.judging import judge
    from advnas.reports.pairs import all_pairings

    evaluated = {run.name: run.evaluation for run in study.runs if run.evaluation}
    first = {name: found.measures[0].value for name, found in evaluated.items()}
    assert best.evaluation is not None
    pairings = all_pairings(study, judge(study, None))
    return {
        "folder": str(folder),
        "measure": study.measures[0].name,
        "runs": first,
        "means": {
            name: statistics.fmean(first[run.name] for run in study.of(name) if run.name in first)
            for name in study.strategies
        },
        "pairs": [pairing._asdict() | pairing.difference._asdict() for pairing in pairings],
        "answer": {"run": best.name, "architecture": dict(best.evaluation.architecture)},
        "verdict": [remark._asdict() for remark in remarks],
        "report": None if page is None else str(page),
    }

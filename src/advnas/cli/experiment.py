"""`advnas experiment` and `advnas report`: the paper's studies."""

import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any, cast

from advnas.cli.commands import Report, RunStudy, Toy
from advnas.cli.console import console
from advnas.cli.progress import study_progress, toy_progress

if TYPE_CHECKING:
    from advnas.paper.toy import ToySettings
    from advnas.reports.study import Accuracies
    from advnas.reports.tables import Curves
    from advnas.studies.engines import Engine
    from advnas.studies.execute import Job
    from advnas.studies.study import Comparison, Study


def run_study(asked: RunStudy) -> None:
    """Run what is missing, then show every run."""
    from advnas import strategies
    from advnas.arguments import check_count
    from advnas.paper import STUDIES
    from advnas.records.locks import lock
    from advnas.studies.execute import plan
    from advnas.studies.folder import claim_folder
    from advnas.tasks.data_folder import data_folder

    data = data_folder(asked.data_folder).resolve()
    flags = {flag: True for flag in asked.flags if getattr(asked, flag)}
    comparison: Comparison = STUDIES[asked.name].load()(asked.preset, data, **flags)
    study, count = _with_answer(comparison.study, asked.answer), comparison.seeds
    names = list(dict.fromkeys(asked.strategies)) or list(comparison.strategies)
    for name in names:
        strategies.strategy_type(name)
    first = check_count("--first-seed", asked.first_seed, least=0)
    count = count if asked.seeds is None else check_count("--seeds", asked.seeds)
    engine = _engine(asked)
    if asked.show:
        _show_settings(f"{study.name}, {asked.preset}", study, names, count)
        return
    study.check(names[0], first)
    folder = asked.folder or Path("runs") / "-".join([study.name, asked.preset, *flags]).replace("_", "-")
    jobs = plan(study, names, range(first, first + count))
    with lock(folder):
        claim_folder(folder, study)
        _carry_out(study, jobs, folder, engine)
    if study.table is None:
        _show_evaluations(folder, as_json=asked.json)
    else:
        _show_cells(folder, study.table, data, as_json=asked.json)


def _carry_out(study: "Study", jobs: "list[Job]", folder: Path, engine: "Engine | None") -> None:
    """Do all runs; whoever stops them is told how to go on: by the same command."""
    from advnas.records.files import CannotWrite
    from advnas.search import SearchStopped
    from advnas.studies.execute import execute

    how_to_resume = f"Go on with: {join(['advnas', *sys.argv[1:]])}"
    try:
        with study_progress(study, jobs, folder) as on_done:
            execute(study, jobs, folder, engine=engine, on_done=on_done)
    except CannotWrite as failed:
        raise CannotWrite(f"{failed} {how_to_resume}") from failed
    except KeyboardInterrupt as stopped:
        raise SearchStopped(f"{str(stopped) or 'Stopped.'} {how_to_resume}") from None


def _with_answer(study: "Study", answer: str | None) -> "Study":
    """The study with the answer that was asked for."""
    if answer is None:
        return study
    if not hasattr(study.settings, "answer"):
        raise ValueError(f"The study {study.name} answers as the paper does, got --answer {answer}. Leave it out.")
    return replace(study, settings=replace(study.settings, answer=answer))  # type: ignore[type-var]


def _engine(study: RunStudy) -> "Engine | None":
    """Where the runs happen; None: one after the other in this process."""
    from advnas.arguments import check_count
    from advnas.studies.engines import Processes, Ray

    jobs = None if study.jobs is None else check_count("--jobs", study.jobs)
    if study.engine == "ray":
        return Ray(study.address, jobs)
    if study.address is not None:
        raise ValueError(
            f"--address is for --engine ray, got {study.address!r}. Add --engine ray, or leave it out."
        )
    return None if jobs == 1 else Processes(jobs or 2)


def _show_settings(title: str, study: "Study", names: Sequence[str], seeds: int) -> None:
    from rich.table import Table

    table = Table("setting", "value", title=title)
    for field in fields(study.settings):
        table.add_row(field.name, str(getattr(study.settings, field.name)))
    table.add_section()
    table.add_row("strategies", ", ".join(names))
    table.add_row("seeds", str(seeds))
    for about, what in study.procedure().items():
        table.add_row(about, what)
    console().print(table)


def _show_cells(folder: Path, table: str, data: Path, *, as_json: bool) -> None:
    """Every finished run: its cells, and what they are worth where the benchmark's table is at hand."""
    from advnas import strategies, tables
    from advnas.studies.run import read_results

    known = _known_accuracies(table, data)
    rows = []
    for result in read_results(folder):
        best = result["process_best"] and result["process_best"]["architecture"]
        row = {key: result[key] for key in ("strategy", "seed", "seconds")}
        argmax = None if result["strategy"] in strategies.baselines() else result["argmax"]  # theta never moves
        staged = {name: result.get(name, {}).get("architecture") for name in ("ranked", "refined")}
        for name, cell in {"argmax": argmax, "process_best": best, **staged}.items():
            row[name] = cell and tables.get(table).to_string(cell)
            row[f"{name}_accuracy"] = known.accuracy(cell) if cell and known else None
        rows.append(row)
    shown = [f"{name}_accuracy" for name in ("argmax", "process_best", "ranked")]
    shown += ["refined_accuracy"] if any(row["refined"] for row in rows) else []
    columns = ("strategy", "seed", *shown, "seconds")
    _print_rows(folder, rows, columns, as_json=as_json)


def _show_evaluations(folder: Path, *, as_json: bool) -> None:
    """Every finished run: its cell and what it was worth after retraining."""
    from advnas.studies.run import read_results

    rows, columns = [], list[str]()
    for result in read_results(folder):
        measured = dict(result.get("evaluation", {}))
        cell = measured.pop("architecture", None)
        rows.append(
            {key: result[key] for key in ("strategy", "seed", "seconds")} | measured | {"architecture": cell}
        )
        columns = ["strategy", "seed", *measured, "seconds"]
    _print_rows(folder, rows, columns, as_json=as_json)


def _print_rows(folder: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    from rich.table import Table

    shown = Table(*(column.replace("_", " ") for column in columns), title=str(folder))
    for row in rows:
        shown.add_row(*(_cell(row[key]) for key in columns))
    if as_json:
        print(json.dumps(rows, indent=1))
    terminal = console(stderr=as_json)
    terminal.print(shown)
    terminal.print(f"Figures, tables and one page of it all: advnas report {quote(str(folder))}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)


def write_study_report(report: Report) -> None:
    """Everything that can be made from the records; accuracies where the benchmark's table is at hand."""
    if report.tensorboard:
        from advnas.reports.tensorboard import write_events

        print(f"wrote {write_events(report.folder)}")
        return
    from advnas.reports.page import write_report
    from advnas.reports.study import read_study
    from advnas.tasks.data_folder import data_folder

    table = read_study(report.folder).table
    known = None if table is None else _known_accuracies(table, data_folder(report.data_folder))
    if table is not None and known is None:
        print("No table of accuracies in the data folder: the report goes without them.", file=sys.stderr)
    for path in write_report(report.folder, known):
        print(f"wrote {path}")


def _known_accuracies(table: str, data: Path) -> "Accuracies | None":
    from advnas import tables

    benchmark = tables.get(table)
    try:
        return cast("Accuracies", benchmark.load(benchmark.find(data)))
    except FileNotFoundError:
        return None


def run_toy_study(toy: Toy) -> None:
    """Run what is missing, then show and keep everything."""
    from advnas import strategies
    from advnas.arguments import check_count
    from advnas.paper.toy import PRESETS, are_losses, curves_of, run_toy
    from advnas.records.provenance import provenance
    from advnas.studies.folder import Results, load_results

    check_count("--seeds", 1 if toy.seeds is None else toy.seeds)
    check_count("--iterations", 1 if toy.iterations is None else toy.iterations)
    preset = PRESETS[toy.preset]
    settings = replace(
        preset,
        trials=preset.trials if toy.seeds is None else toy.seeds,
        iterations=preset.iterations if toy.iterations is None else toy.iterations,
        seed=preset.seed if toy.seed is None else toy.seed,
    )
    names = list(dict.fromkeys(toy.strategies)) or [
        name for name in strategies.names() if strategies.get(name).takes_architecture_steps
    ]
    for name in names:
        strategies.strategy_type(name)
    path = None if toy.folder is None else toy.folder / "results.json"
    results = Results(settings, {}, {}) if path is None else load_results(path, settings)
    broken = [name for name, losses in results.rows.items() if not are_losses(settings, losses)]
    if broken:
        raise ValueError(f"{path} holds no losses of this study for {', '.join(broken)}. Give another --folder.")
    if toy.folder is not None:
        toy.folder.mkdir(parents=True, exist_ok=True)  # before the run: a bad folder must not cost it
    missing = [name for name in names if name not in results.rows]
    if missing:
        with toy_progress(settings, missing) as on_iteration:
            made = run_toy(settings, missing, on_iteration)
        origin = provenance()
        results = Results(
            settings, {**results.rows, **made}, {**results.provenance, **dict.fromkeys(missing, origin)}
        )
    if path is not None:
        results.save(path)
    shown = {name: curves_of(settings, results.rows[name]) for name in names}
    if toy.json:
        print(json.dumps(shown))
    _present(toy, settings, shown)


def _present(toy: Toy, settings: "ToySettings", curves: "Curves") -> None:
    """The table on the terminal, the figure and the spreadsheet in the folder."""
    from rich.table import Table

    from advnas.records.files import write_atomically
    from advnas.reports.tables import toy_csv, toy_header, toy_rows

    terminal = console(stderr=toy.json)
    table = Table(
        title=f"Toy regression: median test loss x 100 over {settings.trials} trials, seed {settings.seed}",
        caption="runs: operations executed per decision, for the weights / for theta; found: the teacher",
    )
    for number, title in enumerate(toy_header(curves)):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in toy_rows(curves):
        table.add_row(*row)
    terminal.print(table)
    if toy.folder is None:
        terminal.print("Add --folder F to keep the numbers and the figure.")
        return
    write_atomically(toy.folder / "toy.csv", toy_csv(curves))
    written = [toy.folder / "results.json", toy.folder / "toy.csv"]
    try:
        from advnas.reports.curves import draw_toy

        written += draw_toy(curves, toy.folder)
    except ImportError:
        terminal.print("No figure: it needs matplotlib. Write pip install 'advnas[reports]' and run this again.")
    for path in written:
        terminal.print(f"wrote {path}")

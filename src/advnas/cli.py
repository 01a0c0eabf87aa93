"""The command line. Torch is imported inside the commands, so that help answers at once."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from advnas import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from advnas.benchmarks.nasbench201 import Table
    from advnas.experiments.experiment import Experiment as Study
    from advnas.experiments.toy import ToySearch, ToySettings
    from advnas.reports.tables import Curves
    from advnas.studies.execute import Job

    OnIteration = Callable[[int, dict[str, ToySearch]], object]
    OnDone = Callable[[Job], object]


@dataclass(frozen=True)
class Toy:
    """The paper's toy regression: find a teacher's filters, weights fixed, all strategies side by side."""

    preset: Literal["quick", "paper"] = "paper"
    """quick: 300 iterations, 3 trials, seconds. paper: 2,000 iterations, 10 trials, about two minutes."""
    strategies: Annotated[tuple[str, ...], arg(metavar="A B ...", help_behavior_hint="")] = ()
    """Which ones to run; all of them if not given (see `advnas list strategies`)."""
    seeds: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Number of trials, each with its own teacher and inputs; the preset's if not given."""
    iterations: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Architecture steps a trial; the preset's if not given."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """What all randomness starts from; the preset's if not given."""
    folder: Annotated[Path | None, arg(metavar="F", help_behavior_hint="")] = None
    """Keep results.json, toy.csv and the figure here; finished strategies are not run again."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object (losses x 100) on standard output."""


@dataclass(frozen=True)
class Theory:
    """Check the paper's theorems and variance formulas by exact enumeration of small spaces."""


_DataFolder = Annotated[Path | None, arg(metavar="F", help_behavior_hint="")]


@dataclass(frozen=True)
class _Study:
    """What all studies of strategies x seeds can be told."""

    preset: Literal["quick", "laptop", "paper"] = "laptop"
    """quick: a smoke test, a minute. laptop: a faithful reduction, about an hour. paper: the appendix."""
    strategies: Annotated[tuple[str, ...], arg(metavar="A B ...", help_behavior_hint="")] = ()
    """Which ones to run; those of the paper's table and random if not given."""
    seeds: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """How many seeds; the preset's if not given."""
    first_seed: int = 0
    """The seeds are this one and those that follow it."""
    jobs: int = 2
    """Runs at the same time, each in a process of its own."""
    folder: Annotated[Path | None, arg(metavar="F", help_behavior_hint="")] = None
    """Where everything is kept; finished runs are not run again. runs/STUDY-PRESET if not given."""
    data_folder: _DataFolder = None
    """Where the data lie; the environment variable ADVNAS_DATA, or ~/.cache/advnas, if not given."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object a run on standard output."""
    show: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print every setting and run nothing."""


@dataclass(frozen=True)
class Cifar10(_Study):
    """The paper's main study: the NAS-Bench-201 cell on CIFAR-10, every strategy from the same warm weights."""

    zero: Annotated[bool, arg(help_behavior_hint="")] = False
    """Put the zero operation `none` among the candidates."""


@dataclass(frozen=True)
class Ptb(_Study):
    """The paper's recurrent cell on Penn Treebank: search, retrain what was found, measure its perplexity."""


@dataclass(frozen=True)
class Digits(_Study):
    """A small study without a download: a convolutional cell on handwritten digits, retrained and tested."""

    preset: Literal["quick", "laptop"] = "laptop"
    """quick: a smoke test, seconds. laptop: about two minutes."""


@dataclass(frozen=True)
class Experiment:
    """Run one of the paper's studies."""

    study: (
        Annotated[Toy, subcommand("toy")]
        | Annotated[Cifar10, subcommand("cifar10")]
        | Annotated[Ptb, subcommand("ptb")]
        | Annotated[Digits, subcommand("digits")]
        | Annotated[Theory, subcommand("theory")]
    )


@dataclass(frozen=True)
class Report:
    """Make tables, figures and one HTML page from a study's records."""

    folder: Positional[Path]
    """The study's folder."""
    data_folder: _DataFolder = None
    """Where the table of accuracies lies; ADVNAS_DATA, or ~/.cache/advnas, if not given."""


@dataclass(frozen=True)
class Query:
    """Look up a cell in a table of known results."""

    benchmark: Positional[Literal["nasbench201"]]
    cell: Positional[str]
    """Such as '|nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|'."""
    dataset: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """cifar10, cifar100 or imagenet16; all of them if not given."""
    data_folder: _DataFolder = None
    """Where nasbench201.csv.gz lies; ADVNAS_DATA, or ~/.cache/advnas, if not given."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object."""


@dataclass(frozen=True)
class DataStatus:
    """Tell which data are there."""

    data_folder: _DataFolder = None
    """ADVNAS_DATA, or ~/.cache/advnas, if not given."""


@dataclass(frozen=True)
class DataGet:
    """Download a dataset; an interrupted download goes on where it was."""

    name: Positional[str]
    """cifar10"""
    data_folder: _DataFolder = None
    """ADVNAS_DATA, or ~/.cache/advnas, if not given."""


@dataclass(frozen=True)
class Data:
    """See and fetch datasets."""

    action: Annotated[DataStatus, subcommand("status")] | Annotated[DataGet, subcommand("get")]


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: Positional[Literal["strategies", "spaces"]]


Command = Annotated[
    Annotated[Experiment, subcommand("experiment")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Query, subcommand("query")]
    | Annotated[Data, subcommand("data")]
    | Annotated[List, subcommand("list")],
    OmitArgPrefixes,
    OmitSubcommandPrefixes,
    FlagCreatePairsOff,
]


def main() -> None:
    """`advnas ...`; errors of the user's are one sentence and exit code 2."""
    if sys.argv[1:] == ["--version"]:
        print(f"advnas {__version__}")
        return
    description = "Find a network's architecture while it trains. `advnas --version` tells the version."
    command = tyro.cli(Command, prog="advnas", description=description)
    try:
        run(command)
    except (ValueError, OSError) as error:
        print(f"advnas: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("advnas: stopped.", file=sys.stderr)
        raise SystemExit(130) from None


def run(command: Experiment | Report | Query | Data | List) -> None:
    """Carry out a parsed command."""
    match command:
        case Experiment(study=Toy() as toy):
            run_toy_study(toy)
        case Experiment(study=Cifar10() | Ptb() | Digits() as study):
            run_study(study)
        case Report():
            write_study_report(command)
        case Query():
            query_benchmark(command)
        case Data(action=DataGet() as wanted):
            get_data(wanted)
        case Data():
            show_data(command.action.data_folder)
        case Experiment():
            print_theory()
        case List(what="strategies"):
            list_strategies()
        case List():
            list_spaces()


def list_strategies() -> None:
    """Every strategy: what it executes, what it is, its options."""
    import rich
    from rich.table import Table

    from advnas import strategies
    from advnas.reports.tables import propagation

    table = Table(title="Strategies", caption="operations: executed a decision, for the weights / for theta")
    table.add_column("name", no_wrap=True)
    table.add_column("operations", no_wrap=True)
    table.add_column("what it does")
    table.add_column("options")
    for name in strategies.names():
        summary = (strategies.strategy_type(name).__doc__ or "").partition("\n")[0]
        options = "\n".join(f"{option}={value}" for option, value in strategies.options(name).items())
        table.add_row(name, propagation(name), summary, options)
    rich.print(table)


def list_spaces() -> None:
    """Every search space that comes with the package."""
    import rich
    from rich.table import Table

    from advnas.spaces import SPACES

    table = Table("name", "what it is", title="Search spaces")
    for name, summary in SPACES.items():
        table.add_row(name, summary)
    rich.print(table)


def print_theory() -> None:
    """The figures of docs/theory.md."""
    from advnas.testing.theory_report import report

    print(report())


def run_study(study: Cifar10 | Ptb | Digits) -> None:
    """Run what is missing, then show every run."""
    from advnas import strategies
    from advnas.data_folder import data_folder
    from advnas.search import check_count
    from advnas.studies.execute import execute, plan
    from advnas.studies.results import claim_folder

    data = data_folder(study.data_folder)
    experiment, defaults, count = _experiment_of(study, data)
    names = list(dict.fromkeys(study.strategies)) or list(defaults)
    for name in names:
        strategies.strategy_type(name)
    first = check_count("--first-seed", study.first_seed, least=0)
    count = count if study.seeds is None else check_count("--seeds", study.seeds)
    processes = check_count("--jobs", study.jobs)
    if study.show:
        _show_settings(f"{experiment.name}, {study.preset}", experiment, names, count)
        return
    experiment.check()
    zero = "-zero" if isinstance(study, Cifar10) and study.zero else ""
    folder = study.folder or Path("runs") / f"{experiment.name}-{study.preset}{zero}"
    claim_folder(folder, experiment.name, experiment.settings)
    jobs = plan(experiment, names, range(first, first + count))
    with _study_progress(experiment, jobs, folder) as on_done:
        execute(experiment, jobs, folder, processes=processes, on_done=on_done)
    if isinstance(study, Cifar10):
        _show_cells(folder, data, as_json=study.json)
    else:
        _show_evaluations(folder, as_json=study.json)


def _experiment_of(study: Cifar10 | Ptb | Digits, data: Path) -> "tuple[Study, Sequence[str], int]":
    """The experiment, the strategies it compares, and over how many seeds."""
    from advnas.experiments import cifar10, digits, ptb

    if isinstance(study, Digits):
        experiment = digits.DigitsExperiment(digits.PRESETS[study.preset])
        return experiment, digits.STRATEGIES, digits.SEEDS[study.preset]
    if isinstance(study, Ptb):
        return ptb.Ptb(ptb.PRESETS[study.preset], data), ptb.STRATEGIES, ptb.SEEDS[study.preset]
    settings = replace(cifar10.PRESETS[study.preset], zero=study.zero)
    return cifar10.Cifar10(settings, data), cifar10.STRATEGIES, cifar10.SEEDS[study.preset]


def _show_settings(title: str, experiment: "Study", names: Sequence[str], seeds: int) -> None:
    import rich
    from rich.table import Table

    table = Table("setting", "value", title=title)
    for field in fields(experiment.settings):
        table.add_row(field.name, str(getattr(experiment.settings, field.name)))
    table.add_section()
    table.add_row("strategies", ", ".join(names))
    table.add_row("seeds", str(seeds))
    for about, what in experiment.procedure().items():
        table.add_row(about, what)
    rich.print(table)


@contextmanager
def _study_progress(experiment: "Study", jobs: "Sequence[Job]", folder: Path) -> "Iterator[OnDone]":
    """A live bar on a terminal, a line for every run that is done elsewhere; both on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    done_before = sum(job.is_done(folder) for job in jobs)
    if done_before:
        console.print(f"{done_before} of {len(jobs)} runs are done already", highlight=False)
    if console.is_terminal:
        with _study_bar(experiment, jobs, folder, console):
            yield lambda job: console.print(f"{job.name}: done", highlight=False)
        return
    started = time.monotonic()

    def announce(job: "Job") -> None:
        done = sum(job.is_done(folder) for job in jobs)
        left = (time.monotonic() - started) * (len(jobs) - done) / max(1, done - done_before)
        print(f"{job.name}: done; {done} of {len(jobs)}, about {left / 60:.0f} min left", file=sys.stderr)

    yield announce


@contextmanager
def _study_bar(experiment: "Study", jobs: "Sequence[Job]", folder: Path, console: "Console") -> Iterator[None]:
    """Looks every second at what the runs have written: they are other processes, or another program's."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    over = threading.Event()
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(), TimeRemainingColumn())

    def watch() -> None:
        while not over.wait(1):
            done = sum(job.is_done(folder) for job in jobs)
            progress = sum(job.progress(experiment, folder) for job in jobs)
            bar.update(task, completed=progress, description=f"{done} of {len(jobs)} runs")

    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=len(jobs))
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _show_cells(folder: Path, data: Path, *, as_json: bool) -> None:
    """Every finished run: its cells, and what they are worth where the benchmark's table is at hand."""
    from advnas.benchmarks import nasbench201
    from advnas.studies.runs import read_results

    known = _known_accuracies(data)
    rows = []
    for result in read_results(folder):
        best = result["process_best"] and result["process_best"]["architecture"]
        row = {key: result[key] for key in ("strategy", "seed", "seconds")}
        argmax = None if result["strategy"] == "random" else result["argmax"]  # its theta never moves
        for name, cell in (("argmax", argmax), ("process_best", best)):
            row[name] = cell and nasbench201.to_string(cell)
            row[f"{name}_accuracy"] = known.accuracy(cell) if cell and known else None
        rows.append(row)
    columns = ("strategy", "seed", "argmax_accuracy", "process_best_accuracy", "seconds")
    _print_rows(folder, rows, columns, as_json=as_json)


def _show_evaluations(folder: Path, *, as_json: bool) -> None:
    """Every finished run: its cell and what it was worth after retraining."""
    from advnas.studies.runs import read_results

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
    from rich.console import Console
    from rich.table import Table

    shown = Table(*(column.replace("_", " ") for column in columns), title=str(folder))
    for row in rows:
        shown.add_row(*(_cell(row[key]) for key in columns))
    if as_json:
        print(json.dumps(rows, indent=1))
    console = Console(stderr=as_json)
    console.print(shown)
    console.print(f"Figures, tables and one page of it all: advnas report {folder}", highlight=False)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)


def write_study_report(report: Report) -> None:
    """Everything that can be made from the records; accuracies where the benchmark's table is at hand."""
    from advnas.data_folder import data_folder
    from advnas.reports.page import write_report
    from advnas.reports.study import read_study

    of_cells = read_study(report.folder).experiment == "cifar10"
    known = _known_accuracies(data_folder(report.data_folder)) if of_cells else None
    if of_cells and known is None:
        print("No table of accuracies in the data folder: the report goes without them.", file=sys.stderr)
    for path in write_report(report.folder, known):
        print(f"wrote {path}")


def _known_accuracies(data: Path) -> "Table | None":
    from advnas.benchmarks import nasbench201

    try:
        return nasbench201.load(nasbench201.find(data))
    except FileNotFoundError:
        return None


def query_benchmark(query: Query) -> None:
    """Accuracies, rank among all cells, parameters and multiply-adds of one cell."""
    from rich.console import Console
    from rich.table import Table

    from advnas.benchmarks import nasbench201
    from advnas.data_folder import data_folder

    table = nasbench201.load(nasbench201.find(data_folder(query.data_folder)))
    found = nasbench201.query(table, query.cell, query.dataset)
    if query.json:
        print(json.dumps(found, indent=1))
        return
    shown = Table("dataset", "test", "valid", "rank by test", "better than", title=found["cell"])
    for name, row in found["datasets"].items():
        better = f"{row['percentile_test']:.2f} %"
        shown.add_row(name, f"{row['test']:.2f}", f"{row['valid']:.2f}", f"{row['rank_test']:,}", better)
    console = Console()
    console.print(shown)
    console.print(f"{found['params']:.6f} M parameters, {found['flops']:.5f} M multiply-adds", highlight=False)


def show_data(folder: Path | None) -> None:
    """What is there, what is missing, what is damaged."""
    import rich
    from rich.table import Table

    from advnas.data_folder import data_folder
    from advnas.tasks.downloads import status

    where = data_folder(folder)
    table = Table("data", "state", "what", title=f"Data in {where}")
    for name, state, detail in status(where):
        table.add_row(name, state, detail)
    rich.print(table)


def get_data(wanted: DataGet) -> None:
    """Download, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from advnas.data_folder import data_folder
    from advnas.tasks.downloads import get

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(wanted.name, total=None)
        path = get(
            wanted.name,
            data_folder(wanted.data_folder),
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(path)


def run_toy_study(toy: Toy) -> None:
    """Run what is missing, then show and keep everything."""
    from advnas import strategies
    from advnas.experiments.toy import PRESETS, are_losses, curves_of, run_toy
    from advnas.search import check_count
    from advnas.studies.results import Results, load_results, provenance

    check_count("--seeds", 1 if toy.seeds is None else toy.seeds)
    check_count("--iterations", 1 if toy.iterations is None else toy.iterations)
    preset = PRESETS[toy.preset]
    settings = replace(
        preset,
        trials=preset.trials if toy.seeds is None else toy.seeds,
        iterations=preset.iterations if toy.iterations is None else toy.iterations,
        seed=preset.seed if toy.seed is None else toy.seed,
    )
    names = list(dict.fromkeys(toy.strategies)) or list(strategies.names())
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
        with _progress(settings, missing) as on_iteration:
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
    from rich.console import Console
    from rich.table import Table

    from advnas.checkpoint import write_atomically
    from advnas.reports.tables import TOY_HEADER, toy_csv, toy_rows

    console = Console(stderr=toy.json)
    table = Table(
        title=f"Toy regression: median test loss x 100 over {settings.trials} trials, seed {settings.seed}",
        caption="runs: operations executed a decision, for the weights / for theta; found: the teacher",
    )
    for number, title in enumerate(TOY_HEADER):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in toy_rows(curves):
        table.add_row(*row)
    console.print(table)
    if toy.folder is None:
        console.print("Add --folder F to keep the numbers and the figure.", highlight=False)
        return
    write_atomically(toy.folder / "toy.csv", toy_csv(curves))
    written = [toy.folder / "results.json", toy.folder / "toy.csv"]
    try:
        from advnas.reports.curves import draw_toy

        written += draw_toy(curves, toy.folder)
    except ImportError:
        console.print("No figure: it needs matplotlib. Write pip install 'advnas[reports]' and run this again.")
    for path in written:
        console.print(f"wrote {path}", highlight=False)


@contextmanager
def _progress(settings: "ToySettings", names: Sequence[str]) -> "Iterator[OnIteration]":
    """A live bar on a terminal, ten plain lines elsewhere; both on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown, last = names[0], settings.iterations

    def state(search: "ToySearch") -> str:
        return f"{shown}: loss {100 * search.loss.median().item():.3f}, entropy {search.entropy():.3f}"

    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(shown, total=last)

            def update(iteration: int, searches: "dict[str, ToySearch]") -> None:
                bar.update(task, completed=iteration)
                if iteration % 10 == 0:
                    bar.update(task, description=state(searches[shown]))

            yield update
        return
    started = time.monotonic()

    def report(iteration: int, searches: "dict[str, ToySearch]") -> None:
        if iteration and iteration % max(1, last // 10) == 0:
            left = (time.monotonic() - started) * (last - iteration) / iteration
            print(f"iteration {iteration} of {last}, {state(searches[shown])}, {left:.0f} s left", file=sys.stderr)

    yield report

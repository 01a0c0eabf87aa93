"""The command line. Torch is imported inside the commands, so that help answers at once."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from advnas import __version__

if TYPE_CHECKING:
    from advnas.experiments.toy import ToySearch, ToySettings
    from advnas.reports.tables import Curves

    OnIteration = Callable[[int, dict[str, ToySearch]], object]


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


@dataclass(frozen=True)
class Experiment:
    """Run one of the paper's studies."""

    study: Annotated[Toy, subcommand("toy")] | Annotated[Theory, subcommand("theory")]


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: Positional[Literal["strategies", "spaces"]]


Command = Annotated[
    Annotated[Experiment, subcommand("experiment")] | Annotated[List, subcommand("list")],
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


def run(command: Experiment | List) -> None:
    """Carry out a parsed command."""
    match command:
        case Experiment(study=Toy() as toy):
            run_toy_study(toy)
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

"""From the command line to what carries a command out."""

import os
import sys
import warnings
from collections.abc import Sequence

import tyro

from advnas import __version__
from advnas.arguments import did_you_mean
from advnas.cli import answers, data, experiment, search
from advnas.cli.commands import (
    Command,
    Data,
    DataGet,
    Experiment,
    Export,
    List,
    Query,
    Report,
    Retrain,
    RunStudy,
    Search,
    Toy,
)
from advnas.cli.console import console

_COMMANDS = ("search", "export", "retrain", "experiment", "report", "query", "data", "list")


def main() -> None:
    """`advnas ...`; errors of the user's are one sentence and exit code 2. A closed standard output is silent."""
    try:
        try:
            _main()
        finally:
            sys.stdout.flush()  # here, where it can be caught
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush when Python ends
        raise SystemExit(1) from None


def _main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"advnas {__version__}")
        return
    _check_command(sys.argv[1:2])
    description = "Find a network's architecture while it trains. `advnas --version` tells the version."
    command = tyro.cli(Command, prog="advnas", description=description)
    plain = warnings.formatwarning
    warnings.formatwarning = lambda message, *place, **more: f"warning: {message}\n"
    try:
        run(command)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        print(f"advnas: {_sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as stopped:
        print(f"advnas: {str(stopped) or 'Stopped.'}", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        warnings.formatwarning = plain


def _check_command(first: Sequence[str]) -> None:
    """Say what may have been meant by a command that there is not."""
    for name in first:
        if not name.startswith("-") and name not in _COMMANDS:
            meant = did_you_mean(name, _COMMANDS)
            print(
                f"advnas: There is no command {name!r}{meant}. Choose one of {', '.join(_COMMANDS)}.",
                file=sys.stderr,
            )
            raise SystemExit(2)


def _sentence(error: Exception) -> str:
    """What an error says, without the number that the operating system gives its own."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."


def run(command: Search | Export | Retrain | Experiment | Report | Query | Data | List) -> None:
    """Carry out a parsed command."""
    if isinstance(command, Search | Retrain | Experiment):
        from advnas.search.device import keep_kernels

        keep_kernels()
    match command:
        case Search():
            search.run_search(command)
        case Export():
            answers.export_answer(command)
        case Retrain():
            answers.retrain_answer(command)
        case Experiment(study=Toy() as toy):
            experiment.run_toy_study(toy)
        case Experiment(study=RunStudy() as study):
            experiment.run_study(study)
        case Report():
            experiment.write_study_report(command)
        case Query():
            data.query_benchmark(command)
        case Data(action=DataGet() as wanted):
            data.get_data(wanted)
        case Data():
            data.show_data(command.action.data_folder)
        case Experiment():
            print_theory()
        case List(what="strategies"):
            list_strategies()
        case List(what="spaces"):
            list_spaces()
        case List():
            list_tasks()


def list_strategies() -> None:
    """Every strategy: what it executes, what it is, its options."""
    from rich.table import Table

    from advnas import strategies
    from advnas.reports.tables import propagation

    table = Table(title="Strategies", caption="operations: executed per decision, for the weights / for theta")
    table.add_column("name", no_wrap=True)
    table.add_column("operations", no_wrap=True)
    table.add_column("what it does")
    table.add_column("options")
    for name in strategies.names():
        summary = (strategies.strategy_type(name).__doc__ or "").partition("\n")[0]
        options = "\n".join(f"{option}={value}" for option, value in strategies.options(name).items())
        table.add_row(name, propagation(name), summary, options)
    console().print(table)


def list_spaces() -> None:
    """Every search space that comes with the package."""
    from rich.table import Table

    from advnas.spaces import SPACES

    table = Table("name", "what it is", title="Search spaces")
    for name, space in SPACES.items():
        table.add_row(name, space.summary)
    console().print(table)


def list_tasks() -> None:
    """Every task that comes with the package."""
    from rich.table import Table

    from advnas.tasks import TASKS

    table = Table("name", "what it is", "its space", title="Tasks")
    for name, task in TASKS.items():
        table.add_row(name, task.summary, task.space)
    console().print(table)


def print_theory() -> None:
    """The figures of docs/theory.md."""
    from advnas.paper.theory import report

    print(report())

"""Progress on standard error: live on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from advnas.cli.console import console, description

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from advnas.paper.toy import ToySearch, ToySettings
    from advnas.studies.execute import Job, Status
    from advnas.studies.study import Study

    OnIteration = Callable[[int, dict[str, ToySearch]], object]
    OnDone = Callable[[Job], object]


@contextmanager
def study_progress(study: "Study", jobs: "Sequence[Job]", folder: Path) -> "Iterator[OnDone]":
    """A live bar on a terminal, a line for every run that is done elsewhere; both on standard error."""
    terminal = console(stderr=True)
    done_before = sum(job.is_done(folder) for job in jobs)
    if done_before:
        terminal.print(f"{done_before} of {len(jobs)} runs are done already")
    if terminal.is_terminal:
        with _study_bar(study, jobs, folder, terminal):
            yield lambda job: terminal.print(f"{job.name}: done")
        return
    started, done = time.monotonic(), done_before

    def announce(job: "Job") -> None:
        nonlocal done
        done += 1  # rather than a look at all of them, which may be ten thousand
        left = (time.monotonic() - started) * (len(jobs) - done) / max(1, done - done_before)
        print(f"{job.name}: done; {done} of {len(jobs)}, about {duration(left)} left", file=sys.stderr)

    yield announce


@contextmanager
def _study_bar(study: "Study", jobs: "Sequence[Job]", folder: Path, terminal: "Console") -> Iterator[None]:
    """Looks every few seconds at what the runs have written: they are other processes, or another program's."""
    from rich.live import Live

    over, started = threading.Event(), time.monotonic()
    begun = sum(job.status(study, folder).share for job in jobs)

    def watch() -> None:
        while not over.wait(max(1, len(jobs) / 500)):
            live.update(study_view(study, jobs, folder, time.monotonic() - started, begun), refresh=True)

    with Live(console=terminal, transient=True, auto_refresh=False, redirect_stderr=False) as live:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def study_view(
    study: "Study", jobs: "Sequence[Job]", folder: Path, seconds: float, begun: float = 0.0
) -> "RenderableType":
    """What every run under way is doing, what the first search among them believes, and the time that is left.

    begun: jobs' worth of work that was done before the clock started.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from advnas.search.progress import likely

    states = [(job, job.status(study, folder)) for job in jobs]
    done, share = sum(state.phase == "done" for _, state in states), sum(state.share for _, state in states)
    left = seconds * (len(jobs) - share) / (share - begun) if share > begun else None
    time_left = "" if left is None else f", about {duration(left)} left"
    table = Table("run", "phase", "loss", "metric", "entropy", box=None, pad_edge=False)
    under_way = [(job, state) for job, state in states if state.phase not in ("waiting", "done")]
    for job, state in under_way:
        record = state.record or {}
        numbers = (_number(record.get(key)) for key in ("loss", "metric", "entropy"))
        table.add_row(Text(job.name), _phase(state), *numbers)
    shown = next((state.record for _, state in under_way if state.phase == "search" and state.record), None)
    parts: list[RenderableType] = [f"{done} of {len(jobs)} runs done, {duration(seconds)} so far{time_left}"]
    bar = Table.grid()
    bar.add_row(ProgressBar(total=len(jobs), completed=share, width=60))
    return Group(*parts, bar, table, *([] if shown is None else [Text(likely(shown["probabilities"]))]))


def _phase(state: "Status") -> str:
    if state.phase == "retraining":
        return f"retraining, {state.part:.0f} epochs"
    return f"{state.phase}, {100 * state.part:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in words: seconds while they are few, minutes after that."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextmanager
def toy_progress(settings: "ToySettings", names: Sequence[str]) -> "Iterator[OnIteration]":
    """A live bar on a terminal, ten plain lines elsewhere; both on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    terminal = console(stderr=True)
    shown, last = names[0], settings.iterations

    def state(search: "ToySearch") -> str:
        return f"{shown}: loss {100 * search.loss.median().item():.3f}, entropy {search.entropy():.3f}"

    if terminal.is_terminal:
        columns = (description(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=terminal, transient=True) as bar:
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

"""Progress on standard error: live on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from advnas.experiments.experiment import Experiment as Study
    from advnas.experiments.toy import ToySearch, ToySettings
    from advnas.studies.execute import Job

    OnIteration = Callable[[int, dict[str, ToySearch]], object]
    OnDone = Callable[[Job], object]


@contextmanager
def study_progress(experiment: "Study", jobs: "Sequence[Job]", folder: Path) -> "Iterator[OnDone]":
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
    started, done = time.monotonic(), done_before

    def announce(job: "Job") -> None:
        nonlocal done
        done += 1  # rather than a look at all of them, which may be ten thousand
        left = (time.monotonic() - started) * (len(jobs) - done) / max(1, done - done_before)
        print(f"{job.name}: done; {done} of {len(jobs)}, about {left / 60:.0f} min left", file=sys.stderr)

    yield announce


@contextmanager
def _study_bar(experiment: "Study", jobs: "Sequence[Job]", folder: Path, console: "Console") -> Iterator[None]:
    """Looks every few seconds at what the runs have written: they are other processes, or another program's."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    over = threading.Event()
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(), TimeRemainingColumn())

    def watch() -> None:
        while not over.wait(max(1, len(jobs) / 500)):
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


@contextmanager
def toy_progress(settings: "ToySettings", names: Sequence[str]) -> "Iterator[OnIteration]":
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

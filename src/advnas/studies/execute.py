"""Carry out a study: strategies x seeds, in several processes, going on where an earlier start was stopped."""

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from advnas.checkpoint import StopSignals, write_atomically
from advnas.experiments.experiment import Experiment
from advnas.processes import current
from advnas.search import NonFiniteLoss, SearchStopped
from advnas.studies.runs import run_folder, run_search, run_warmup, shares_warmup, warmup_file

_PATIENCE = 0.2  # seconds between two looks at whether somebody wants to stop


@dataclass(frozen=True)
class Job:
    """One piece of work: the warm-up of a seed (strategy None), or the search of a strategy."""

    strategy: str | None
    seed: int

    @property
    def name(self) -> str:
        """How messages speak of it."""
        return f"{self.strategy or 'warm-up'}, seed {self.seed}"

    def is_done(self, study: Path) -> bool:
        """Whether an earlier start finished it."""
        if self.strategy is None:
            return warmup_file(study, self.seed).exists()
        return (run_folder(study, self.strategy, self.seed) / "result.json").exists()

    def progress(self, experiment: Experiment, study: Path) -> float:
        """How much of it is done, from 0 to 1, by the records that are there."""
        if self.is_done(study) or self.strategy is None:
            return float(self.is_done(study))
        path = run_folder(study, self.strategy, self.seed) / "timing.jsonl"
        written = path.read_bytes().count(b"\n") if path.exists() else 0
        length = experiment.length
        return written / (1 + (length.turns - length.warmup_turns) / length.record_every)

    def run(self, experiment: Experiment, study: Path) -> None:
        """Do the work, or what is left of it."""
        if self.strategy is None:
            run_warmup(experiment, self.seed, study)
        else:
            run_search(experiment, self.strategy, self.seed, study)


def plan(experiment: Experiment, names: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All jobs, seed by seed, so that a study that is cut short has whole seeds; warm-ups first."""
    shared = experiment.length.warmup > 0 and any(shares_warmup(name) for name in names)
    warmups = [Job(None, seed) for seed in seeds] if shared else []
    return warmups + [Job(name, seed) for seed in seeds for name in names]


def execute(
    experiment: Experiment,
    jobs: Sequence[Job],
    study: Path,
    *,
    processes: int = 1,
    on_done: Callable[[Job], object] | None = None,
) -> None:
    """Run the jobs that are not done yet. A job that fails does not stop the others; its error comes at the end.

    A process that has joined a group does its part of every job, one after the other.
    """
    left = [job for job in jobs if not job.is_done(study)]
    current().wait()  # nobody finishes one before all have looked
    failures: dict[Job, BaseException] = {}
    if processes == 1:
        _run_here(experiment, left, study, failures, on_done)
    else:
        _run_in_processes(experiment, left, study, processes, failures, on_done)
    if failures:
        details = "\n".join("".join(traceback.format_exception(error)) for error in failures.values())
        write_atomically(study / "failures.txt", details)
        reasons = "; ".join(f"{job.name}: {error or type(error).__name__}" for job, error in failures.items())
        raise RunsFailed(
            f"{len(failures)} of {len(jobs)} runs failed; {study / 'failures.txt'} has the details. {reasons}"
        )


class RunsFailed(ValueError):
    """Some runs of a study failed; the others are done."""


Failures = dict[Job, BaseException]
OnDone = Callable[[Job], object] | None


def _run_here(experiment: Experiment, left: list[Job], study: Path, failures: Failures, on_done: OnDone) -> None:
    for job in left:
        if _is_hopeless(job, failures):
            continue
        try:
            job.run(experiment, study)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            if current().size > 1 and not isinstance(error, NonFiniteLoss):
                raise  # the other processes may not know, and would wait
            failures[job] = error
        else:
            if on_done is not None:
                on_done(job)


def _run_in_processes(
    experiment: Experiment, left: list[Job], study: Path, processes: int, failures: Failures, on_done: OnDone
) -> None:
    keep_freed_memory()
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // processes)
    waiting, running = list(left), dict[Future[None], Job]()
    pool = ProcessPoolExecutor(processes, context, _begin_process, (threads, os.getpid()))
    with StopSignals() as signals, pool:
        while waiting or running:
            if signals.requested:
                _stop(pool)
            for job in [job for job in waiting if _may_start(job, waiting, running)][: processes - len(running)]:
                waiting.remove(job)
                if not _is_hopeless(job, failures):
                    running[pool.submit(job.run, experiment, study)] = job
            for future in wait(running, _PATIENCE, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                error = future.exception()
                if isinstance(error, KeyboardInterrupt):
                    _stop(pool)
                if isinstance(error, BrokenProcessPool):
                    raise ChildProcessError(
                        "A process of the study died. Start the same command again: it goes on."
                    )
                if error is not None:
                    failures[job] = error
                elif on_done is not None:
                    on_done(job)


def _stop(pool: ProcessPoolExecutor) -> NoReturn:
    """Let every process finish its step and save."""
    for process in multiprocessing.active_children():
        process.terminate()
    pool.shutdown()
    raise SearchStopped("The runs under way were stopped and saved.")


def _begin_process(threads: int, parent: int) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """A study that was killed may be started again at once: nobody else may still be writing into its folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def keep_freed_memory() -> None:
    """Tell glibc in the processes to come not to give memory back between steps: a tenth of a step's time."""
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**31 - 1))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))


def _needs_warmup(job: Job) -> bool:
    return job.strategy is not None and shares_warmup(job.strategy)


def _may_start(job: Job, waiting: list[Job], running: dict[Future[None], Job]) -> bool:
    return not _needs_warmup(job) or Job(None, job.seed) not in {*waiting, *running.values()}


def _is_hopeless(job: Job, failures: Failures) -> bool:
    """Its warm-up failed, which is said already."""
    return _needs_warmup(job) and Job(None, job.seed) in failures

"""Carry out a study: strategies x seeds, here or on an engine, going on where an earlier start was stopped."""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from advnas.parallel.launch import current
from advnas.records.files import CannotWrite, write_atomically
from advnas.records.journal import read_journal
from advnas.records.signals import StopSignals
from advnas.search import Length, NonFiniteLoss, SearchStopped
from advnas.studies.engines import Engine
from advnas.studies.run import run_folder, run_search, run_warmup, shares_warmup, warmup_file
from advnas.studies.study import Study

_PATIENCE = 0.2  # seconds between two looks at whether somebody wants to stop
_APPEARANCE = 10.0  # seconds that a shared folder may take to show what another machine has written


@dataclass(frozen=True)
class Job:
    """One piece of work: the warm-up of a seed (strategy None), or the search of a strategy.

    compared: all strategies of the study, whose cost decides what a baseline may spend.
    """

    strategy: str | None
    seed: int
    compared: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """How messages speak of it."""
        return f"{self.strategy or 'warm-up'}, seed {self.seed}"

    def is_done(self, folder: Path) -> bool:
        """Whether an earlier start finished it."""
        if self.strategy is None:
            return warmup_file(folder, self.seed).exists()
        return (run_folder(folder, self.strategy, self.seed) / "result.json").exists()

    def status(self, study: Study, folder: Path) -> "Status":
        """How far it is, by the files that are there; whoever asks need not be the one who works."""
        return _status(self, study.length, folder)

    def run(self, study: Study, folder: Path) -> None:
        """Do the work, or what is left of it."""
        if self.strategy is None:
            run_warmup(study, self.seed, folder)
        else:
            run_search(study, self.strategy, self.seed, folder, self.compared)


@dataclass(frozen=True)
class Status:
    """phase: what is being done. part: how much of that, from 0 to 1; of a retraining, its epochs. record: the last
    one.
    """

    phase: Literal["waiting", "warm-up", "search", "retraining", "done"]
    part: float = 0.0
    record: Mapping[str, Any] | None = None

    @property
    def share(self) -> float:
        """How much of the job is done, as far as that can be told: a retraining may be half of it."""
        shares = {"waiting": 0.0, "warm-up": self.part, "search": 0.7 * self.part, "retraining": 0.7, "done": 1.0}
        return shares[self.phase]


def _status(job: Job, length: Length, folder: Path) -> Status:
    if job.strategy is None:
        steps = _last_number((folder / "warmup" / str(job.seed)).glob("checkpoint-*.pt"))
        if warmup_file(folder, job.seed).exists():
            return Status("done", 1.0)
        return Status("warm-up", steps / length.warmup_turns) if steps else Status("waiting")
    own = run_folder(folder, job.strategy, job.seed)
    record = _last_line(own / "records.jsonl")
    if (own / "result.json").exists():
        return Status("done", 1.0, record)
    if (own / "evaluation").exists():
        return Status("retraining", _last_number((own / "evaluation").glob("checkpoint-*.pt")), record)
    if record is None:
        return Status("search" if own.exists() else "waiting")
    part = (record["step"] - length.warmup_turns) / (length.turns - length.warmup_turns)
    return Status("search", part, record)


def _last_number(checkpoints: Iterable[Path]) -> int:
    return max((int(path.stem.rpartition("-")[2]) for path in checkpoints), default=0)


def _last_line(path: Path) -> dict[str, Any] | None:
    lines = list(read_journal(path)) if path.exists() else []
    return lines[-1] if lines else None


def plan(study: Study, names: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All jobs, seed by seed, so that a study that is cut short has whole seeds; warm-ups first."""
    shared = study.length.warmup > 0 and any(shares_warmup(name) for name in names)
    warmups = [Job(None, seed) for seed in seeds] if shared else []
    return warmups + [Job(name, seed, tuple(names)) for seed in seeds for name in names]


def execute(
    study: Study,
    jobs: Sequence[Job],
    folder: Path,
    *,
    engine: Engine | None = None,
    on_done: Callable[[Job], object] | None = None,
) -> None:
    """Run the jobs that are not done yet. A job that fails does not stop the others; its error comes at the end.

    engine: where they run; None: here, one after the other, and a process that has joined a group does its part.
    """
    left = [job for job in jobs if not job.is_done(folder)]
    current().wait()  # nobody finishes one before all have looked
    failures: dict[Job, BaseException] = {}
    if engine is None:
        _run_here(study, left, folder, failures, on_done)
    else:
        _run_on(engine, study, left, folder.resolve(), failures, on_done)
    if failures:
        details = "\n".join("".join(traceback.format_exception(error)) for error in failures.values())
        write_atomically(folder / "failures.txt", details)
        raise RunsFailed(
            f"{len(failures)} of {len(jobs)} runs failed; {folder / 'failures.txt'} has the details. "
            f"{_reasons(failures)} Start again with the same settings and folder: what is done is not run again."
        )


def _reasons(failures: "Failures") -> str:
    """Every reason once, with the runs that have it."""
    runs: dict[str, list[str]] = {}
    for job, error in failures.items():
        told = isinstance(error, ValueError | ArithmeticError) and str(error)
        words = told or traceback.format_exception_only(error)[0].strip()
        runs.setdefault(words.rstrip("."), []).append(job.name)
    return " ".join(f"{' and '.join(names)}: {words}." for words, names in runs.items())


class RunsFailed(ValueError):
    """Some runs of a study failed; the others are done."""


Failures = dict[Job, BaseException]
OnDone = Callable[[Job], object] | None


def _run_here(study: Study, left: list[Job], folder: Path, failures: Failures, on_done: OnDone) -> None:
    for job in left:
        if _is_hopeless(job, failures):
            continue
        try:
            job.run(study, folder)
        except Exception as error:
            if isinstance(error, CannotWrite) or (current().size > 1 and not isinstance(error, NonFiniteLoss)):
                raise  # no other run could write; or the other processes may not know, and would wait
            failures[job] = error
        else:
            if on_done is not None:
                on_done(job)


def _run_on(
    engine: Engine, study: Study, left: list[Job], folder: Path, failures: Failures, on_done: OnDone
) -> None:
    waiting, running = list(left), dict[Future[None], Job]()
    with engine, StopSignals() as signals:  # in this order: Ray listens to signals of its own, and would abort
        while waiting or running:
            if signals.requested:
                _stop(engine)
            room = len(waiting) if engine.room is None else engine.room - len(running)
            starting = _startable(waiting, running)[:room]
            taken = set(starting)
            waiting = [job for job in waiting if job not in taken]
            for job in starting:
                if not _is_hopeless(job, failures):
                    running[engine.submit(job.run, study, folder)] = job
            for future in wait(running, _PATIENCE, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                error = _outcome(engine, future, job, folder)
                if error is not None:
                    failures[job] = error
                elif on_done is not None:
                    on_done(job)


def _outcome(engine: Engine, future: Future[None], job: Job, folder: Path) -> BaseException | None:
    """What went wrong with a job that is over, if anything did."""
    error = future.exception()
    if isinstance(error, KeyboardInterrupt):
        _stop(engine)
    if isinstance(error, CannotWrite):  # nor could the others
        engine.stop()
        raise error
    if isinstance(error, BrokenProcessPool):
        raise ChildProcessError("A process of the study died. Start the same command again: it goes on.")
    if error is None and not _appears(job, folder):
        return ValueError(
            f"{job.name} is done where it ran, but {folder} does not show it here. "
            "Give a --folder on storage that all machines see."
        )
    return error


def _appears(job: Job, folder: Path) -> bool:
    deadline = time.monotonic() + _APPEARANCE
    while not job.is_done(folder) and time.monotonic() < deadline:
        time.sleep(_PATIENCE)
    return job.is_done(folder)


def _stop(engine: Engine) -> NoReturn:
    engine.stop()
    raise SearchStopped("The runs under way were stopped and saved.")


def _needs_warmup(job: Job) -> bool:
    return job.strategy is not None and shares_warmup(job.strategy)


def _startable(waiting: Sequence[Job], running: Mapping[Future[None], Job]) -> list[Job]:
    """Those whose warm-up is not still to come; in one pass, as a study may have ten thousand runs."""
    warming = {job.seed for job in (*waiting, *running.values()) if job.strategy is None}
    return [job for job in waiting if job.seed not in warming or not _needs_warmup(job)]


def _is_hopeless(job: Job, failures: Failures) -> bool:
    """Its warm-up failed, which is said already."""
    return _needs_warmup(job) and Job(None, job.seed) in failures

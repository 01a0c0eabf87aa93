"""The one loop: it takes turns, and a Recorder keeps what they leave in a run folder.

A run folder holds `run.json` (what was asked, and where), `metrics.jsonl` (a line per step), `records.jsonl` (a
line per measurement; `timing.jsonl` has their times, so that the records of equal runs are equal to the byte),
checkpoints, and at the end `result.json`. One process at a time owns it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from advnas import strategies
from advnas.arguments import check_count
from advnas.parallel.group import Group, RankGone
from advnas.records.checkpoints import Checkpoints
from advnas.records.files import CannotWrite, write_atomically
from advnas.records.journal import Journal
from advnas.records.locks import lock
from advnas.records.provenance import provenance
from advnas.records.restoring import check_form, check_settings
from advnas.records.signals import StopSignals
from advnas.records.unsaved import UnsavedBuffers
from advnas.search.callbacks import Callback, by_name
from advnas.search.data import Minibatches
from advnas.search.schedule import Length, turn
from advnas.search.step import LossOf, SearchStopped, Step
from advnas.search.swaps import CreditCheck, check_credit, plan_squares
from advnas.search.work import Keeper, Work

if TYPE_CHECKING:
    from advnas.search.search import Search

FORMAT = 2
_JOURNALS = ("metrics", "records", "timing")
_OF_A_RUN = ("run.json", "result.json", *(f"{name}.jsonl" for name in _JOURNALS))


class SearchRun:
    """One search on its way through its data.

    Args:
        search: at its beginning; it is told how long it will be.
        data: what its minibatches are.
        length: how long the run is.
        on_credit: called when the strategy's credit has been compared with measured swaps; by rank 0 alone.

    Attributes:
        records: what was measured, where no folder keeps it.
        callbacks: whose states are saved with the search.
        extends: the length of the shorter search that this one goes on from, if it does.
        folder: where the run is kept; None without one.
    """

    def __init__(
        self,
        search: "Search",
        data: Minibatches,
        length: Length,
        on_credit: Callable[[CreditCheck], object] | None = None,
    ) -> None:
        self.search, self.data, self.length = search, data, length
        self.credit: CreditCheck | None = None
        self.records: list[dict[str, Any]] = []
        self.callbacks: Sequence[Callback] = ()
        self.extends: int | None = None
        self.folder: Path | None = None
        self._losses: list[float] = []
        search.progress.set_length(length.turns, length.warmup_turns)
        self._on_credit, self._squares = on_credit, plan_squares(search, length)
        self._unsaved = UnsavedBuffers(search.model)

    @property
    def position(self) -> int:
        """Weight steps taken; every turn has one."""
        return self.search.weight_steps

    def turn(self) -> Iterator[Step]:
        """Take the steps of one turn of Algorithm 1's loop."""
        latest, next_of_theta = self.data.losses(self.search)

        def of_theta() -> LossOf:
            nonlocal latest
            latest = next_of_theta()
            return latest

        for step in turn(self.search, latest, of_theta):
            self._losses += [step.loss] * (step.phase == "architecture")
            yield step
            if step.phase == "architecture":
                self._check_credit(latest)

    def _check_credit(self, loss_of: LossOf) -> None:
        """Measure swaps once, half-way between the end of the warm-up and the end of the search.

        By then theta has moved, and where slopes mislead it they contradict the swaps most clearly. This comes
        after a step of theta, on its minibatch: data that carry a state along, such as a text, take it from the
        first pass over a minibatch, which must be the search's own.
        """
        due = (self.length.warmup_turns + self.length.turns) // 2
        if self.credit is not None or not self._squares or self.position <= due:
            return
        self.credit = check_credit(self.search, loss_of, self._squares)
        if self._on_credit is not None and self.search.group.rank == 0:
            self._on_credit(self.credit)

    def record(self) -> dict[str, Any]:
        """Entropy, answers, and the mean loss of theta's steps since the last record."""
        losses, self._losses = self._losses, []
        return {
            "epoch": self.position / self.length.per_epoch,
            "step": self.position,
            "entropy": self.search.distribution.entropy().mean().item(),
            "loss": sum(losses) / len(losses) if losses else None,
            "metric": self.data.measure(self.search),
            **self.search.answers(),
        }

    def asked(self) -> dict[str, Any]:
        """What was asked for, as plain values; for `run.json`."""
        strategy = self.search.strategy
        return {
            "strategy": strategies.name_of(strategy),
            "seed": self.search.seed,
            "answer": getattr(strategy, "answer", "argmax"),  # somebody's own may have the two methods alone
            "learns": getattr(strategy, "learns", True),
            "settings": self.search.settings(),
            "optimizers": self._optimizers(),
            "length": asdict(self.length),
        }

    def _optimizers(self) -> dict[str, Any]:
        """How the weights and theta learn, as it was asked for."""
        weights, theta = self.search.weights, self.search.policy
        return {
            "weight_optimizer": weights.settings,
            "weight_clip": weights.clip,
            "architecture_optimizer": theta.settings,
            "architecture_clip": theta.clip,
        }

    def result(self) -> dict[str, Any]:
        """What is known at the end, as plain values, equal for equal runs; for `result.json`."""
        return {
            "strategy": strategies.name_of(self.search.strategy),
            "seed": self.search.seed,
            **self.search.answers(),
            "operation_sizes": self.search.space.operation_sizes(),
            "credit": self.credit.to_json() if self.credit is not None and self.credit.swaps else None,
        }

    def state(self, folder: Path) -> dict[str, Any]:
        """The search, its data, and what the next record is made of."""
        self._unsaved.tell()
        carried = {name: callback.state() for name, callback in by_name(self.callbacks).items()}
        return {
            "settings": self.search.settings(),
            "optimizers": self._optimizers(),
            "search": self.search.state(folder),
            "data": self.data.state(),
            "losses": list(self._losses),
            "credit": None if self.credit is None else self.credit.to_json(),
            "callbacks": {name: state for name, state in carried.items() if state},
        }

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Load a state of the same search on the same data, or raise ValueError and leave the search as it was.

        A search that was over may have been shorter: from its last step on, all schedules are those of the longer.
        """
        form: dict[str, Any] = {"settings": {}, "search": {}, "data": {}, "losses": []}
        check_form(state, [form, {**form, "losses": [0.0]}], "it")
        now, before = self.search.settings(), state["settings"]
        extends = _length_of_finished(state["search"], before)
        longer = extends is not None and self.length.turns > extends
        check_settings(now, {**before, "steps": now.get("steps")} if longer else before)
        optimizers = self._optimizers()
        check_settings(optimizers, state.get("optimizers", optimizers))  # not known to early checkpoints of 0.2
        credit = state.get("credit")  # not yet measured, or not known to version 0.1
        checked = None if credit is None else CreditCheck.from_json(credit)
        self.data.restore(state["data"])
        for name, callback in by_name(self.callbacks).items():
            if name in state.get("callbacks", {}):
                callback.restore(state["callbacks"][name])
        self.search.restore(state["search"], folder)  # last: what it takes over it keeps
        self.extends = extends if longer else None
        self._losses, self.credit = list(state["losses"]), checked


def _length_of_finished(search: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    """How many weight steps a search had, if its state is that of its end."""
    steps, weights = settings.get("steps"), search.get("weights")
    over = isinstance(steps, int) and isinstance(weights, Mapping) and weights.get("steps") == steps
    return steps if over else None


class Recorder:
    """Owns a run folder while it is open: journal, records, checkpoints, signals.

    Opening it locks the folder and resumes from the newest checkpoint, if that is wanted. Ctrl-C and SIGTERM let
    the turn under way finish, save, and raise SearchStopped.

    Args:
        folder: of the run.
        work: what is recorded.
        asked: what was asked for, as plain values; kept in `run.json`.
        resume: go on from the newest checkpoint, or start if there is none.
        group: of the processes that do the run together: all take every step, rank 0 writes.
        advice: how to go on after a stop; the end of messages.
    """

    def __init__(
        self,
        folder: Path,
        work: Work,
        *,
        asked: Mapping[str, Any],
        resume: bool,
        group: Group | None = None,
        advice: str = "",
    ) -> None:
        self.folder, self.resumed, self.warmup_seconds = folder, False, 0.0
        self._work, self._asked, self._resume, self._advice = work, asked, resume, advice
        self._group = Group() if group is None else group
        self._writes = self._group.rank == 0
        self._checkpoints, self._signals = Checkpoints(folder), StopSignals()
        self._records = 0
        self._written: dict[str, dict[str, Any]] = {}  # what the checkpoint knows of the journals
        self._start = time.perf_counter()
        self._journals: dict[str, Journal] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            if self._writes:
                opening.enter_context(lock(self.folder))
                self._refuse_to_overwrite()
            if self._resume:
                self.resumed = self._checkpoints.resume(self._restore)
            self._group.wait()  # nobody writes before all have read
            if self._writes:
                with self._writing():
                    self._begin_files(opening)
            opening.enter_context(self._signals)
            self._open = opening.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open.close()
        if isinstance(error, RankGone):
            raise RankGone(f"{error} The last checkpoint is in {self.folder}. {self._advice}".strip()) from error

    @property
    def seconds(self) -> float:
        """Time at work since the warm-up ended, over all the times the run was started."""
        return round(time.perf_counter() - self._start, 3)

    @property
    def has_records(self) -> bool:
        """Whether anything was measured yet."""
        return self._records > 0

    def end_warmup(self) -> None:
        """Count the time from here on as the search; what was spent so far was the warm-up."""
        self.warmup_seconds = self.warmup_seconds or self.seconds
        self._start = time.perf_counter()

    def note(self, step: Any) -> None:
        """Write a step into the journal."""
        if self._writes:
            with self._writing():
                self._journals["metrics"].append(asdict(step))

    def record(self) -> dict[str, Any] | None:
        """Measure, and append a line to the records."""
        record = self._work.record()
        if record is None:
            return None
        if self._writes:
            with self._writing():
                self._journals["records"].append(record)
                self._journals["timing"].append({"epoch": record["epoch"], "seconds": self.seconds})
        self._records += 1
        return record

    def end_turn(self, *, save: bool) -> None:
        """Save if that is due or somebody wants to stop; raise SearchStopped in the latter case."""
        stop = self._group.any(self._signals.requested)  # a signal may reach the processes in different turns
        if (save or stop) and self._writes:
            with self._writing():
                self._save()
        if stop:
            what = f"The run in {self.folder} was stopped after {self._work.position} turns and saved."
            raise SearchStopped(f"{what} {self._advice}".strip())

    def finish(self, result: Mapping[str, Any], *, keep_checkpoints: bool = False) -> None:
        """Write `result.json`; the checkpoints have done their work."""
        if self._writes:
            with self._writing():
                write_atomically(self.folder / "result.json", json.dumps(result, indent=1) + "\n")
            if not keep_checkpoints:
                self._checkpoints.clear()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say of a file that cannot be written how to go on."""
        try:
            yield
        except CannotWrite:
            raise
        except OSError as error:
            what = f"{error.filename or self.folder} cannot be written: {error.strerror or error}."
            go_on = self._advice[:1].lower() + self._advice[1:] or "resume."
            raise CannotWrite(f"{what} The last checkpoint is whole. Make room, then {go_on}") from error

    def _refuse_to_overwrite(self) -> None:
        left = any((self.folder / name).exists() for name in _OF_A_RUN) or self._checkpoints.any()
        if left and not self._resume:
            raise FileExistsError(
                f"{self.folder} already holds the records of a run. Give another folder, or resume=True to go on."
            )

    def _begin_files(self, opening: ExitStack) -> None:
        if not self.resumed or not (self.folder / "run.json").exists():
            content = {"format": FORMAT, **self._asked, "provenance": provenance()}
            write_atomically(self.folder / "run.json", json.dumps(content, indent=1) + "\n")
        for name in _JOURNALS:
            written = self._written.get(name, {"lines": 0})
            journal = Journal(self.folder / f"{name}.jsonl", keep=written["lines"])
            opening.callback(journal.close)
            self._journals[name] = journal
            journal.tell_damage(**written)

    def _save(self) -> None:
        for journal in self._journals.values():
            journal.sync()  # a checkpoint must not know of lines that a power cut takes away
        self._checkpoints.save(
            {
                "work": self._work.state(self.folder),
                "lines": self._journals["metrics"].lines,
                "records": self._records,
                "journals": {
                    name: {"lines": journal.lines, "sha256": journal.sha256}
                    for name, journal in self._journals.items()
                },
                "seconds": self.seconds,
                "warmup_seconds": self.warmup_seconds,
            },
            self._work.position,
        )

    def _restore(self, saved: dict[str, Any]) -> None:
        form = {"work": {}, "lines": 0, "records": 0, "seconds": 0.0, "warmup_seconds": 0.0}
        check_form(saved, [form], "it")
        lines, records = (check_count(name, saved[name], least=0) for name in ("lines", "records"))
        counts = {"metrics": lines, "records": records, "timing": records}
        written = saved.get("journals")
        if written is None:  # in early checkpoints of 0.2
            written = {name: {"lines": count} for name, count in counts.items()}
        else:
            check_form(written, [{name: {"lines": 0, "sha256": ""} for name in counts}], "journals")
            for name in counts:
                check_count(f"journals.{name}.lines", written[name]["lines"], least=0)
        self._work.restore(saved["work"], self.folder)
        self._records, self._written = records, written
        self.warmup_seconds = saved["warmup_seconds"]
        self._start = time.perf_counter() - saved["seconds"]


def advance(
    work: Work,
    *,
    until: int,
    every: int,
    after: int = 0,
    recorder: Keeper | None = None,
    on_step: Callable[[Any], object] | None = None,
) -> None:
    """Take turns until the work is at a position.

    Args:
        work: what is advanced.
        until: the position to stop at.
        every: turns between two checkpoints, each with a record.
        after: the position of the first record; before it is the warm-up.
        recorder: keeps everything in a folder.
        on_step: called with every step, before the next is taken.
    """
    if recorder is not None:
        _end_warmup(work, recorder, after)
    while work.position < until:
        for step in work.turn():
            if recorder is not None:
                recorder.note(step)
            if on_step is not None:
                on_step(step)
        if recorder is not None:
            _end_turn(work, recorder, due=work.position % every == 0 or work.position == until, after=after)


def _end_turn(work: Work, recorder: Keeper, *, due: bool, after: int) -> None:
    _end_warmup(work, recorder, after)
    if due and work.position > after:
        recorder.record()
    recorder.end_turn(save=due)


def _end_warmup(work: Work, recorder: Keeper, after: int) -> None:
    """Make the first record, if it is due now."""
    if work.position == after and not recorder.has_records:
        recorder.end_warmup()
        recorder.record()


def run_search(
    run: SearchRun, *, recorder: Keeper | None = None, on_step: Callable[[Step], object] | None = None
) -> None:
    """Take all turns of a search that are left."""
    length = run.length
    advance(
        run,
        until=length.turns,
        every=length.record_every,
        after=length.warmup_turns,
        recorder=recorder,
        on_step=on_step,
    )

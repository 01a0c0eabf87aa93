"""One call of `Search.run`: its options, its callbacks, its folder, and how it ends."""

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from advnas.arguments import check_count, did_you_mean
from advnas.records.files import parse_json, write_atomically
from advnas.records.provenance import provenance
from advnas.search.callbacks import Callback, OnStep, Patience, RunView, StopSearch, TimeLimit
from advnas.search.data import Replayed
from advnas.search.device import on_device
from advnas.search.loop import SearchRun, run_search
from advnas.search.progress import ShowProgress
from advnas.search.recorder import Recorder
from advnas.search.schedule import Length, batches_in
from advnas.search.step import SearchStopped, Step
from advnas.search.swaps import warn_of
from advnas.search.unreached import warn_unreached
from advnas.search.verdict import UndecidedWarning, undecided_warning, verdict_of
from advnas.task import Task

if TYPE_CHECKING:
    from advnas.search.search import Search


class RunOptions(TypedDict, total=False):
    """What `Search.run` can be told besides data, length and folder; see there."""

    on_step: Callable[[Step], object] | None
    callbacks: Sequence[Callback] | Callback
    progress: bool
    device: str | None
    accumulate: int
    time_limit: float | None
    patience: int | None


class Watch:
    """Keeps what a run leaves, in a folder or in memory, and calls the callbacks.

    `StopSearch` is remembered until the turn is over: only then all that belongs to a checkpoint fits together.
    """

    def __init__(self, run: SearchRun, callbacks: Sequence[Callback], recorder: Recorder | None) -> None:
        self._run, self._callbacks, self._recorder = run, callbacks, recorder
        self.view = RunView(run, None if recorder is None else recorder.folder)
        self._stop: StopSearch | None = None

    def start(self) -> None:
        """Tell the callbacks of the start, and stop before the first turn if one of them asks for it."""
        self._tell("start")
        if self._recorder is not None and self._run.search.group.rank == 0:
            _amend_folder(self._recorder.folder, self._run)  # not before: a callback may refuse the run
        self.end_turn(save=False)

    def end(self) -> list[Exception]:
        """Tell all callbacks of the end, also after one that fails; return what went wrong."""
        failed: list[Exception] = []
        for callback in self._callbacks:
            try:
                callback.end(self.view)
            except StopSearch:
                continue  # the search is over
            except Exception as error:
                error.add_note(f"This happened in {type(callback).__name__}.end.")
                failed.append(error)
        return failed

    def _tell(self, moment: str, *details: Any) -> None:
        """Call one method of every callback."""
        for callback in self._callbacks:
            try:
                getattr(callback, moment)(self.view, *details)
            except StopSearch as stop:
                self._stop = self._stop or stop

    @property
    def has_records(self) -> bool:
        """Whether anything was measured yet."""
        return bool(self._run.records) if self._recorder is None else self._recorder.has_records

    def end_warmup(self) -> None:
        """Count the time from here on as the search."""
        if self._recorder is not None:
            self._recorder.end_warmup()

    def note(self, step: Step) -> None:
        """Write a step into the journal, if there is one."""
        if self._recorder is not None:
            self._recorder.note(step)
        self.view.see(step)
        self._tell("step", step)

    def record(self) -> None:
        """Measure where the run stands."""
        self.view.record = self._run.record() if self._recorder is None else self._recorder.record()
        if self._recorder is None and self.view.record is not None:
            self._run.records.append(dict(self.view.record))

    def end_turn(self, *, save: bool) -> None:
        """End an epoch if one is over, save if that is due, and stop if a callback in any process asked for it."""
        if save:
            self._tell("epoch")
        stop = self._is_stopped()
        if self._recorder is not None and self._save(self._recorder, save or stop):
            stop = self._is_stopped()  # a callback may ask for it once it has seen the checkpoint
        if stop:
            raise self._stop or StopSearch("another process asked for it")

    def _is_stopped(self) -> bool:
        return self._run.search.group.any(self._stop is not None)

    def _save(self, recorder: Recorder, due: bool) -> bool:
        """Save if that is due or a signal came, and tell the callbacks; whether it was due."""
        try:
            recorder.end_turn(save=due)
        except SearchStopped:  # saved first
            self._tell("checkpoint")
            raise
        if due:
            self._tell("checkpoint")
        return due


def carry_out(
    search: "Search",
    task: Task,
    epochs: int,
    warmup: int,
    folder: Path | None,
    resume: bool,
    options: RunOptions,
) -> None:
    """Do what `Search.run` says."""
    _check_call(task, folder, resume, options)
    _refuse_another_run(search, folder if resume else None)
    run = _begin(search, task, (epochs, warmup), options)
    callbacks = run.callbacks = _callbacks(search, options)
    with ExitStack() as stack:
        recorder = None
        if folder is not None:
            advice = f"Go on with run(..., folder={str(folder)!r}, resume=True)."
            recorder = stack.enter_context(
                Recorder(folder, run, asked=run.asked(), resume=resume, group=search.group, advice=advice)
            )
        stopped, failed = _take_turns(run, Watch(run, callbacks, recorder))
        run.folder = folder
        search.latest_run = run
        if recorder is not None:
            recorder.finish(run.result() | stopped, keep_checkpoints=True)
        if failed:
            raise failed[0]
    if search.group.rank == 0:
        warn_unreached(search)
    if search.group.rank == 0 and not verdict_of(search).decided:
        warnings.warn(undecided_warning(search), UndecidedWarning, stacklevel=3)


def _take_turns(run: SearchRun, watch: Watch) -> tuple[dict[str, str], list[Exception]]:
    """Take the turns that are left; return why a callback stopped early, if one did, and errors of their ends."""
    stopped = {}
    try:
        watch.start()
        run_search(run, recorder=watch)
    except StopSearch as stop:
        if run.position < run.length.turns:
            stopped = {"stopped": str(stop) or "a callback asked for it"}
    except BaseException as error:
        for failed in watch.end():
            error.add_note(f"After that, a callback failed at its end: {failed!r}")
        raise
    return stopped, watch.end()


def _check_call(task: Task, folder: Path | None, resume: bool, options: RunOptions) -> None:
    for name in options:
        if name not in RunOptions.__annotations__:
            known = ["epochs", "warmup", "folder", "resume", *RunOptions.__annotations__]
            raise TypeError(
                f"Search.run has no option {name!r}{did_you_mean(name, known)}. It has {', '.join(known)}."
            )
    if not isinstance(task, Task):
        raise TypeError(
            f"Search.run takes a task, got {type(task).__name__}. Write search.run(advnas.Task(training, "
            "validation, loss), epochs=...)."
        )
    if resume and folder is None:
        raise ValueError(
            "resume=True needs the folder that the search is kept in. Write run(..., folder='runs/mine')."
        )


def _refuse_another_run(search: "Search", resumed: Path | None) -> None:
    if search.weight_steps and (resumed is None or not any(resumed.glob("checkpoint-*.json"))):
        raise ValueError(
            f"This search has already taken {search.weight_steps} weight steps, and its schedules are over or "
            "under way. Make a new Search, take further steps with weight_step and architecture_step after "
            "search.progress.set_length(MORE), or extend a run that has a folder: run(..., epochs=MORE, "
            "folder=ITS_FOLDER, resume=True)."
        )


def _begin(search: "Search", task: Task, epochs: tuple[int, int], options: RunOptions) -> SearchRun:
    """Put the data and the length of a run together."""
    group, together = search.group, check_count("accumulate", options.get("accumulate", 1))
    per_epoch = batches_in(task.training, processes=group.size) // together
    if not per_epoch:
        raise ValueError(
            f"accumulate={together} asks for more minibatches per step than a pass over the training data has. "
            "Write a smaller number."
        )
    device = options.get("device")
    if device is not None:
        task = on_device(task, device)
        search.model.to(device)
    data = Replayed.of(task, search.seed, (group.rank, group.size))
    return SearchRun(search, replace(data, accumulate=together), Length(per_epoch, *epochs), warn_of)


def _callbacks(search: "Search", options: RunOptions) -> tuple[Callback, ...]:
    time_limit, patience = options.get("time_limit"), options.get("patience")
    listed = options.get("callbacks", ())
    given = (listed,) if isinstance(listed, Callback) else tuple(listed)
    for callback in given:
        if not isinstance(callback, Callback):
            raise TypeError(f"callbacks must be objects of subclasses of advnas.Callback, got {callback!r}.")
    on_step = options.get("on_step")
    return (
        *([] if on_step is None else [OnStep(on_step)]),
        *given,
        *([] if time_limit is None else [TimeLimit(time_limit)]),
        *([] if patience is None else [Patience(patience)]),
        *([ShowProgress()] if options.get("progress", True) and search.group.rank == 0 else []),
    )


def _amend_folder(folder: Path, run: SearchRun) -> None:
    """Let the folder of a search that goes on say so: its result is not known yet, its length may be another."""
    if run.position < run.length.turns:
        (folder / "result.json").unlink(missing_ok=True)
    if run.extends is not None:
        path = folder / "run.json"
        before = parse_json(path.read_bytes(), str(path))
        note = {"extended": {**before.get("extended", {}), str(run.extends): provenance()}}
        write_atomically(path, json.dumps(before | run.asked() | note, indent=1) + "\n")

"""Recorder: keeps what a run leaves in its folder.

A run folder holds `run.json` (what was asked, and where), `metrics.jsonl` (a line per step), `records.jsonl` (a
line per measurement; `timing.jsonl` has their times, so that the records of equal runs are equal to the byte),
checkpoints, and at the end `result.json`. One process at a time owns it.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from advnas.arguments import check_count
from advnas.parallel.group import Group, RankGone
from advnas.records.checkpoints import Checkpoints
from advnas.records.files import CannotWrite, write_atomically
from advnas.records.journal import Journal
from advnas.records.locks import lock
from advnas.records.provenance import provenance
from advnas.records.restoring import check_form
from advnas.records.signals import StopSignals
from advnas.search.step import SearchStopped
from advnas.search.work import Work

FORMAT = 2
_JOURNALS = ("metrics", "records", "timing")
FILES_OF_A_RUN = ("run.json", "result.json", *(f"{name}.jsonl" for name in _JOURNALS))


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
            how = self._advice[:1].lower() + self._advice[1:] or "resume."
            raise CannotWrite(f"{what} The last checkpoint is whole. Make room, then {how}") from error

    def _refuse_to_overwrite(self) -> None:
        left = any((self.folder / name).exists() for name in FILES_OF_A_RUN) or self._checkpoints.any()
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

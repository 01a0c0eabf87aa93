"""One run of a study: a search that leaves records, checkpoints and a result, and can be killed at any time."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from advnas import strategies
from advnas.parallel.launch import current
from advnas.records.checkpoints import Checkpoints, resume_from, save_state
from advnas.records.files import parse_json, write_atomically
from advnas.records.journal import Journal
from advnas.records.restoring import check_form
from advnas.records.signals import StopSignals
from advnas.search import Search, SearchStopped, Step
from advnas.search.plan import saved_bytes
from advnas.studies.folder import provenance
from advnas.studies.study import Minibatches, Study

_MEMORY_DRAWS = 4


def run_folder(folder: Path, strategy: str, seed: int) -> Path:
    """Where a run keeps its files."""
    return folder / "runs" / f"{strategy}-{seed}"


def warmup_file(folder: Path, seed: int) -> Path:
    """The weights after the warm-up that the sparse strategies of a seed share."""
    return folder / "warmup" / f"{seed}.pt"


def shares_warmup(strategy: str) -> bool:
    """Strategies that train one drawn operation per decision do the same while theta is fixed."""
    return strategies.strategy_type(strategy).weight_operations == 1


def run_warmup(study: Study, seed: int, folder: Path) -> None:
    """Train the weights while theta is fixed and uniform, once for all strategies that do this alike.

    Several processes may do it together: all take every step, rank 0 writes.
    """
    target, group = warmup_file(folder, seed), current()
    if group.any(target.exists()):
        return
    search, data = study.begin(strategies.baselines()[0], seed)
    checkpoints, clock = Checkpoints(target.with_suffix("")), _Clock()

    def go_on(saved: dict[str, Any]) -> None:
        nonlocal clock
        check_form(saved, [{"search": {}, "data": {}, "seconds": 0.0}], "it")
        search.restore(saved["search"])
        data.restore(saved["data"])
        clock = _Clock(saved["seconds"])

    checkpoints.resume(go_on)
    group.wait()  # nobody writes before all have read
    while search.weight_steps < study.length.warmup_turns:
        search.turn(*data.losses(search))
        if group.rank == 0 and search.weight_steps % study.length.record_every == 0:
            state = {"search": search.state(), "data": data.state(), "seconds": clock.seconds}
            checkpoints.save(state, search.weight_steps)
    warm = {"weights": search.state()["weights"], "data": data.state(), "seconds": clock.seconds}
    group.on_rank_zero(partial(save_state, target, warm))
    if group.rank == 0:
        checkpoints.clear()


def run_search(study: Study, strategy: str, seed: int, folder: Path) -> None:
    """Search from the end of the warm-up on; leaves `result.json` when it is done, and does nothing if it was.

    Several processes may do it together: all take every step, rank 0 writes and judges what was found.
    """
    own, group = run_folder(folder, strategy, seed), current()
    if group.any((own / "result.json").exists()):
        return
    search, data = study.begin(strategy, seed)
    group.on_rank_zero(partial(_describe, own, study, strategy, seed))
    checkpoints, log = Checkpoints(own), _Log(own, writes=group.rank == 0)

    def go_on(saved: dict[str, Any]) -> None:
        check_form(saved, [{"search": {}, "data": {}}], "it")
        log.restore(saved)
        search.restore(saved["search"], own)
        data.restore(saved["data"])

    def begin(warm: dict[str, Any]) -> None:
        check_form(warm, [{"weights": {}, "data": {}, "seconds": 0.0}], "it")
        search.load_weights(warm["weights"])
        data.restore(warm["data"])
        log.warmup_seconds = warm["seconds"]

    if not checkpoints.resume(go_on) and shares_warmup(strategy) and study.length.warmup:
        resume_from(warmup_file(folder, seed), begin)
    group.wait()  # nobody writes before all have read
    group.count_anew()
    _go(study, search, data, log, checkpoints)
    result = {"strategy": strategy, "seed": seed, **_found(study, strategy, seed, search, log)}

    def finish() -> None:
        evaluation = study.evaluate(strategy, seed, search, own / "evaluation")
        whole = result | {"evaluation": evaluation, "provenance": provenance()}
        write_atomically(own / "result.json", json.dumps(whole, indent=1) + "\n")
        checkpoints.clear()

    group.on_rank_zero(finish)


def _describe(own: Path, study: Study, strategy: str, seed: int) -> None:
    """Write what a reader of the run must know about its strategy, and need not know by itself."""
    learns = strategies.strategy_type(strategy).learns
    asked = {"strategy": strategy, "seed": seed, "answer": study.answer_of(strategy), "learns": learns}
    write_atomically(own / "run.json", json.dumps(asked, indent=1) + "\n")


def _found(study: Study, strategy: str, seed: int, search: Search, log: "_Log") -> dict[str, Any]:
    """What is known at the end of a search."""
    answers, traffic = search.answers(), _traffic(search)
    return {
        "argmax": answers["argmax"],
        "process_best": answers["process_best"],
        "seconds": log.seconds,
        "warmup_seconds": log.warmup_seconds,
        "saved_bytes": _memory(study, strategy, seed),
        "operation_sizes": search.space.operation_sizes(),
        **traffic,
    }


def _traffic(search: Search) -> dict[str, Any]:
    """What several processes told each other in the steps since the run was started last."""
    if search.group.size == 1:
        return {}
    network = sum(weight.nbytes for weight in search.model.parameters())
    traffic = {"processes": search.group.size, "bytes": search.group.bytes_a_step(), "network": network}
    return {"traffic": traffic}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What the finished runs of a study found, ordered by strategy and seed."""
    results = [_read_result(path) for path in (folder / "runs").glob("*/result.json")]
    return sorted(results, key=lambda result: (result["strategy"], result["seed"]))


def _read_result(path: Path) -> dict[str, Any]:
    result = parse_json(path.read_bytes(), str(path))
    found: dict[str, Any] = {"architecture": {}, "loss": 0.0}
    example = {"strategy": "", "seed": 0, "argmax": {}, "process_best": None, "seconds": 0.0}
    try:
        check_form(result, [example, {**example, "process_best": found, "evaluation": {}}], "it")
    except ValueError as error:
        raise ValueError(f"{path} is no result of a run: {error}. Remove it, and run the study again.") from error
    return result


def _go(study: Study, search: Search, data: Minibatches, log: "_Log", checkpoints: Checkpoints) -> None:
    """Take the turns that are left. A signal lets the one under way finish, saves, and stops."""
    length, group = study.length, search.group
    with StopSignals() as signals, log:
        while True:
            if search.weight_steps == length.warmup_turns and not log.records:
                log.end_warmup()
                log.record(study, search, data)
            if search.weight_steps >= length.turns:
                return
            log.note(search.turn(*data.losses(search)))
            due = search.weight_steps % length.record_every == 0 or search.weight_steps == length.turns
            if due and search.weight_steps > length.warmup_turns:
                log.record(study, search, data)
            stop = group.any(signals.requested)  # it may reach the processes in different turns
            if (due or stop) and group.rank == 0:
                log.sync()
                state = {"search": search.state(checkpoints.folder), "data": data.state(), **log.state()}
                checkpoints.save(state, search.weight_steps)
            if stop:
                raise SearchStopped(f"The run in {checkpoints.folder} was stopped and saved.")


class _Clock:
    """Seconds at work, over all the times a run was started."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self._start, 3)


class _Log:
    """Records of a run. Times stand in a file of their own: the records of equal runs are equal to the byte.

    writes: of several processes that do a run together, one.
    """

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self._folder, self._writes = folder, writes
        self.records: list[dict[str, Any]] = []
        self._timing: list[dict[str, float]] = []
        self.warmup_seconds = 0.0
        self._losses: list[float] = []
        self._lines = 0
        self._clock = _Clock()

    def __enter__(self) -> Self:
        self._journal = Journal(self._folder / "metrics.jsonl", keep=self._lines) if self._writes else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._journal is not None:
            self._journal.close()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on with a `state`."""
        moment = {"epoch": 0.0, "seconds": 0.0}
        example = self.state()
        check_form(saved, [example, {**example, "records": [{}], "timing": [moment], "losses": [0.0]}], "it")
        try:
            json.dumps(saved["records"])
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"its records are not plain values: {error}") from error
        self.records, self._timing = saved["records"], saved["timing"]
        self._losses, self._lines = saved["losses"], saved["lines"]
        self.warmup_seconds, self._clock = saved["warmup_seconds"], _Clock(saved["seconds"])

    @property
    def seconds(self) -> float:
        return self._clock.seconds

    def end_warmup(self) -> None:
        """A strategy with a warm-up of its own: what was spent so far is not the search."""
        self.warmup_seconds = self.warmup_seconds or self._clock.seconds
        self._clock = _Clock()

    def note(self, steps: Sequence[Step]) -> None:
        """Every step is a line; the loss of theta's is part of the next record."""
        for step in steps:
            if self._journal is not None:
                self._journal.append(asdict(step))
            self._losses += [step.loss] * (step.phase == "architecture")
        self._lines += len(steps)

    def sync(self) -> None:
        """A checkpoint counts lines, so they must be there before it."""
        if self._journal is not None:
            self._journal.sync()

    def record(self, study: Study, search: Search, data: Minibatches) -> None:
        losses, self._losses = self._losses, []
        epoch = search.weight_steps / study.length.per_epoch
        self.records.append(
            {
                "epoch": epoch,
                "step": search.weight_steps,
                "entropy": search.distribution.entropy().mean().item(),
                "loss": sum(losses) / len(losses) if losses else None,
                "metric": data.measure(search),
                **search.answers(),
            }
        )
        self._timing.append({"epoch": epoch, "seconds": self.seconds})
        if self._journal is None:
            return
        for name, lines in (("records", self.records), ("timing", self._timing)):
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            write_atomically(self._folder / f"{name}.jsonl", text)

    def state(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "timing": self._timing,
            "warmup_seconds": self.warmup_seconds,
            "seconds": self.seconds,
            "losses": self._losses,
            "lines": self._lines,
        }


def _memory(study: Study, strategy: str, seed: int) -> int:
    """What the larger of the two kinds of step keeps for its backward pass: the mean over a few uniform draws."""
    (search, data), kept = study.begin(strategy, seed), []
    for _ in range(_MEMORY_DRAWS):
        training, validation = data.losses(search)
        steps = (
            partial(search.weight_step, training),
            partial(search.architecture_step, validation(), training_loss_of=training),
        )
        kept.append(max(saved_bytes(step) for step in steps))
    return sum(kept) // len(kept)

"""One run of a study: a search that leaves records, checkpoints and a result, and can be killed at any time."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from advnas import strategies
from advnas.parallel.group import Group
from advnas.parallel.launch import current
from advnas.records.checkpoints import resume_from, save_state
from advnas.records.files import parse_json
from advnas.records.provenance import provenance
from advnas.records.restoring import check_form
from advnas.search import Minibatches, NonFiniteLoss, Recorder, Search, SearchRun, StepsOverWarning, advance
from advnas.search import run_search as take_all_turns
from advnas.search.plan import saved_bytes
from advnas.search.unreached import warn_unreached
from advnas.strategies import Answer
from advnas.studies.cost import Staged, answer_stage, passes_of
from advnas.studies.study import Found, Study, Taken

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
    run = SearchRun(*study.begin(strategies.baselines()[0], seed), study.length)
    asked = run.asked() | {"kind": "warm-up"}
    length = study.length
    with Recorder(target.with_suffix(""), run, asked=asked, resume=True, group=group) as recorder:
        advance(run, until=length.warmup_turns, every=length.record_every, after=length.turns, recorder=recorder)
        seconds = recorder.seconds
        warm = {"weights": run.search.state()["weights"], "data": run.data.state(), "seconds": seconds}
        group.on_rank_zero(partial(save_state, target, warm))
        recorder.finish({"seed": seed, "seconds": seconds})


def run_search(study: Study, strategy: str, seed: int, folder: Path, compared: Sequence[str] = ()) -> None:
    """Search from the end of the warm-up on; leaves `result.json` when it is done, and does nothing if it was.

    Several processes may do it together: all take every step, rank 0 writes and judges what was found.

    Args:
        study: what is searched.
        strategy: its name.
        seed: of the run.
        folder: of the study.
        compared: the strategies of the study, whose cost decides what a baseline may spend.
    """
    own, group = run_folder(folder, strategy, seed), current()
    if group.any((own / "result.json").exists()):
        return
    run = SearchRun(*study.begin(strategy, seed), study.length)
    learns = strategies.strategy_type(strategy).learns
    answer = study.answer_of(strategy)
    asked = run.asked() | {"strategy": strategy, "answer": answer, "learns": learns}
    starts_warm = shares_warmup(strategy) and study.length.warmup and not any(own.glob("checkpoint-*.json"))
    warmup_seconds = _begin_warm(run, warmup_file(folder, seed)) if starts_warm else 0.0
    with Recorder(own, run, asked=asked, resume=True, group=group) as recorder:
        recorder.warmup_seconds = recorder.warmup_seconds or warmup_seconds
        group.count_anew()
        take_all_turns(run, recorder=recorder)
        if group.rank == 0:
            warn_unreached(run.search)
        answers = {name: study.answer_of(name) for name in (*compared, strategy)}
        staged = answer_stage(run, recorder, answers, strategy)
        taken = Found.by(run.search, None if staged is None else staged.architecture).taken(answer)
        result = _result(run, recorder, answer, staged) | {"strategy": strategy}
        group.on_rank_zero(partial(_finish, study, run, recorder, taken, result))


def _begin_warm(run: SearchRun, path: Path) -> float:
    """Start from the weights and the data at the end of a warm-up; how long that took."""
    seconds = 0.0

    def load(warm: dict[str, Any]) -> None:
        nonlocal seconds
        check_form(warm, [{"weights": {}, "data": {}, "seconds": 0.0}], "it")
        run.search.load_weights(warm["weights"])
        run.data.restore(warm["data"])
        seconds = warm["seconds"]

    resume_from(path, load)
    return seconds


def _result(run: SearchRun, recorder: Recorder, answer: Answer, staged: Staged | None) -> dict[str, Any]:
    """What is known at the end of a search."""
    times = {"seconds": recorder.seconds, "warmup_seconds": recorder.warmup_seconds}
    found = {} if staged is None else {answer: staged.to_json()}
    return run.result() | found | {"passes": passes_of(run.search, staged)} | times | _traffic(run.search)


def _finish(study: Study, run: SearchRun, recorder: Recorder, answer: Taken, result: Mapping[str, Any]) -> None:
    """Judge the answer, and write the result."""
    evaluation = study.evaluate(answer, result["seed"], run.search, recorder.folder / "evaluation")
    memory = _memory(run.search, run.data)  # last: its steps change the search
    recorder.finish({**result, "saved_bytes": memory, "evaluation": evaluation, "provenance": provenance()})


def _traffic(search: Search) -> dict[str, Any]:
    """What several processes told each other in the steps since the run was started last."""
    if search.group.size == 1:
        return {}
    network = sum(weight.nbytes for weight in search.model.parameters())
    traffic = {"processes": search.group.size, "bytes": search.group.bytes_a_step(), "network": network}
    return {"traffic": traffic}


def _memory(search: Search, data: Minibatches) -> int | None:
    """What the larger of the two kinds of step keeps for its backward pass: the mean over a few uniform draws.

    The search is over, and may be changed. None: a step at uniform theta has no finite loss.
    """
    search.join(Group())
    search.warned.add(StepsOverWarning)  # these steps are measured only
    for logits in search.theta.parameters:
        logits.data.zero_()
    kept = []
    try:
        for _ in range(_MEMORY_DRAWS):
            training, validation = data.losses(search)
            weights = saved_bytes(partial(search.weight_step, training))
            theta = saved_bytes(partial(search.architecture_step, validation(), training_loss_of=training))
            kept.append(max(weights, theta))
    except NonFiniteLoss:
        return None
    return sum(kept) // len(kept)


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What the finished runs of a study found, ordered by strategy and seed."""
    results = [_read_result(path) for path in (folder / "runs").glob("*/result.json")]
    return sorted(results, key=lambda result: (result["strategy"], result["seed"]))


def _read_result(path: Path) -> dict[str, Any]:
    result = parse_json(path.read_bytes(), str(path))
    found: dict[str, Any] = {"architecture": {}, "loss": 0.0}
    example = {"strategy": "", "seed": 0, "argmax": {}, "process_best": None, "seconds": 0.0}
    whole = {**example, "process_best": found, "evaluation": {}, "ranked": found, "refined": found}
    try:
        check_form(result, [example, whole], "it")
    except ValueError as error:
        raise ValueError(f"{path} is no result of a run: {error}. Remove it, and run the study again.") from error
    return result

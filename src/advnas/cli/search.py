"""`advnas search`: from a network with open decisions to a plain one, and a verdict."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from advnas.cli.asked import STRATEGY, default_seeds, study_of
from advnas.cli.commands import Search
from advnas.cli.config import completed, written
from advnas.cli.diagnosis import check_diagnosable, diagnose
from advnas.cli.folders import ASKED, folder_of
from advnas.cli.limits import keep_costs, with_costs
from advnas.cli.progress import study_progress

if TYPE_CHECKING:
    from advnas.studies.execute import Job
    from advnas.studies.study import Study


def run_search(asked: Search) -> None:
    """Search, retrain and judge, for some seeds, and the same for the baselines; then a table and a report."""
    from advnas import strategies
    from advnas.arguments import check_count
    from advnas.cli.presentation import present_study, show_plan
    from advnas.parallel.launch import launched
    from advnas.records.locks import lock
    from advnas.studies.execute import plan

    asked, options = completed(asked, asked.config, {})
    folder = folder_of(asked)
    if asked.resume and (folder / ASKED).exists():
        asked, options = completed(asked, folder / ASKED, options)
    asked = replace(asked, processes=_processes(asked), strategy=asked.strategy or STRATEGY)
    assert asked.strategy is not None
    strategies.strategy_type(asked.strategy)
    first = check_count("--seed", asked.seed or 0, least=0)
    count = check_count("--seeds", default_seeds(asked) if asked.seeds is None else asked.seeds)
    at_once = check_count("--jobs", 2 if asked.jobs is None else asked.jobs)
    study = with_costs(study_of(asked, options), asked.strategy, first, folder)
    if asked.diagnose:
        check_diagnosable(study, first)
    study.check(asked.strategy, first)  # what would stop every run shall stop before the first
    if asked.plan:
        show_plan(study, asked.strategy, range(first, first + count), at_once, as_json=asked.json)
        return
    names = list(dict.fromkeys((asked.strategy, *strategies.baselines())))
    jobs = plan(study, names, range(first, first + count))
    with nullcontext() if launched() and os.environ["RANK"] != "0" else lock(folder):
        if not launched():
            _claim(folder, study, asked, options)
        if _carry_out(asked, study, jobs, folder, at_once):
            try:
                if asked.diagnose:
                    diagnose(study, first, folder)
            finally:  # the runs are done, whatever becomes of the diagnosis
                present_study(folder, asked.strategy, as_json=asked.json)


def _claim(folder: Path, study: "Study", asked: Search, options: Mapping[str, Any]) -> None:
    from advnas.records.files import write_atomically
    from advnas.studies.folder import claim_folder

    claim_folder(folder, study)
    write_atomically(folder / ASKED, written(asked, options))
    keep_costs(study, folder)


def _processes(asked: Search) -> int:
    """How many do a search together: as many as were asked for, or as torchrun has started."""
    from advnas.arguments import check_count
    from advnas.parallel.launch import launched

    started = int(os.environ["WORLD_SIZE"]) if launched() else 1
    processes = check_count("--processes", started if asked.processes is None else asked.processes)
    if started not in (1, processes):
        raise ValueError(f"torchrun has started {started} processes, got --processes {processes}. Leave it out.")
    if processes > 1 and asked.jobs not in (None, 1):
        raise ValueError(
            f"{processes} processes do one run after the other, got --jobs {asked.jobs}. Leave it out."
        )
    if processes == 1 and asked.draws is not None:
        raise ValueError("--draws is for searches by several processes. Leave it out, or add --processes N.")
    if asked.draws not in (None, "shared", "independent"):
        raise ValueError(f"--draws must be shared or independent, got {asked.draws!r}.")
    return processes


def _carry_out(asked: Search, study: "Study", jobs: "list[Job]", folder: Path, at_once: int) -> bool:
    """Do all runs, in the way that was asked for; whether it is this process's turn to show them."""
    from advnas.parallel.group import RankGone
    from advnas.parallel.launch import launched, spawn
    from advnas.records.files import CannotWrite
    from advnas.search import SearchStopped
    from advnas.studies.engines import Processes
    from advnas.studies.execute import execute

    again = "the same command and" if launched() else "advnas search"
    how_to_resume = f"Go on with: {again} --resume --folder {quote(str(folder))}"
    try:
        if launched():
            return _take_part(study, jobs, folder) == 0
        if asked.processes != 1:
            assert asked.processes is not None
            spawn(_take_part, (study, jobs, folder), asked.processes)
            return True
        with study_progress(study, jobs, folder) as on_done:
            engine = Processes(at_once) if at_once > 1 else None
            execute(study, jobs, folder, engine=engine, on_done=on_done)
    except RankGone as gone:
        raise RankGone(f"{gone} The last checkpoint is in {folder}. {how_to_resume}") from gone
    except CannotWrite as failed:
        raise CannotWrite(f"{failed} {how_to_resume}") from failed
    except KeyboardInterrupt as stopped:
        raise SearchStopped(f"{str(stopped) or 'Stopped.'} {how_to_resume}") from None
    return True


def _take_part(study: "Study", jobs: "list[Job]", folder: Path) -> int:
    """Be one of several processes that do all runs together; its rank. Rank 0 writes the folder and tells."""
    from advnas.parallel.launch import joined
    from advnas.studies.execute import execute
    from advnas.studies.folder import claim_folder

    with joined() as group:
        group.on_rank_zero(partial(claim_folder, folder, study))
        claim_folder(folder, study)
        telling = study_progress(study, jobs, folder) if group.rank == 0 else nullcontext()
        with telling as on_done:
            execute(study, jobs, folder, on_done=on_done)
        return group.rank
